"""MLflow: a run on a tracking server, or in a file of its own."""

import csv
import io
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from agl_trackers.records import Prompt, RunAbout, Sample
from agl_trackers.tracker import Tracker

RUN_TAG = "agl.run"
MOST_PARAMS = 100
"""That MLflow takes at once."""
LONGEST_PARAM = 6_000
"""Characters that MLflow takes of a value."""


@dataclass(kw_only=True, eq=False)
class MLflow(Tracker):
    """Writes to an MLflow server, or where there is none, to ``mlflow.db`` and ``mlruns`` here.

    Configuration is parameters and the whole of it ``config.json``. Rollouts are a table per step,
    ``rollouts/step-000001.csv``, prompts texts under ``prompts`` and versions of a prompt of the
    registry, checkpoints artefacts. A run that goes on is the same run there.
    """

    label: ClassVar[str] = "mlflow"
    package: ClassVar[str | None] = "mlflow"
    tracking_uri: str | None = None
    """Address of the server, or ``sqlite:///FILE``; what ``MLFLOW_TRACKING_URI`` or MLflow says if
    left out."""
    experiment: str = "agl"
    """Which the run is of; it is made where there is none."""
    name: str | None = None
    """What the run is called; its id if left out."""
    register_prompts: bool = True
    """Whether prompts are versions in MLflow's registry as well, as ``EXPERIMENT.NAME``."""

    def begin(self, about: RunAbout) -> None:
        self._about = about
        # A client of its own: the agent's current run and address stay as they are.
        self._client = self.library.MlflowClient(self.tracking_uri)
        found = self._client.get_experiment_by_name(self.experiment)
        experiment = found.experiment_id if found else self._new_experiment()
        same = f"tags.`{RUN_TAG}` = '{about.run_id}'"
        runs = self._client.search_runs([experiment], same, max_results=1)
        config = json.loads(json.dumps(about.config, default=str))  # what JSON can hold
        if runs:
            self._run_id: str = runs[0].info.run_id
            self._client.update_run(self._run_id, status="RUNNING")
            self._client.log_dict(self._run_id, config, f"config-{about.generation}.json")
            return
        tags = {RUN_TAG: about.run_id, "agl.algorithm": about.algorithm}
        name = self.name or about.run_id
        self._run_id = self._client.create_run(experiment, tags=tags, run_name=name).info.run_id
        self._client.log_dict(self._run_id, config, "config.json")
        params = [
            self.library.entities.Param(_key(key), str(value)[:LONGEST_PARAM])
            for key, value in _flat(config)
        ]
        for first in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(self._run_id, params=params[first : first + MOST_PARAMS])

    def _new_experiment(self) -> str:
        try:
            return self._client.create_experiment(self.experiment)
        except self.library.MlflowException:  # another run has just made it
            found = self._client.get_experiment_by_name(self.experiment)
            if found is None:
                raise
            return found.experiment_id

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        metric = self.library.entities.Metric
        now = int(time.time() * 1000)
        sent = [metric(_key(name), value, now, step) for name, value in metrics.items()]
        self._client.log_batch(self._run_id, metrics=sent)

    def log_rollouts(self, step: int, samples: Sequence[Sample]) -> None:
        # A file a step: MLflow's own tables are read and written whole for each line that comes.
        rows = [sample.as_row(step) for sample in samples]
        text = io.StringIO()
        table = csv.DictWriter(text, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
        self._client.log_text(self._run_id, text.getvalue(), f"rollouts/step-{step:06d}.csv")

    def log_prompt(self, step: int, prompt: Prompt) -> None:
        file = f"prompts/{_key(prompt.name)}/step-{step:06d}-{_key(prompt.version)}.txt"
        self._client.log_text(self._run_id, prompt.text, file)
        if self.register_prompts:
            tags = {RUN_TAG: self._about.run_id, "step": str(step), "version": prompt.version}
            name = re.sub(r"[^\w.\-]", "-", f"{self.experiment}.{prompt.name}")
            self._client.register_prompt(name, prompt.text, f"after step {step}", tags)

    def log_checkpoint(self, step: int, path: str, folder: Path | None) -> None:
        self._client.set_tag(self._run_id, "agl.checkpoint", path)
        if folder is None:
            return
        if folder.is_dir():
            self._client.log_artifacts(self._run_id, str(folder), f"checkpoints/{folder.name}")
        else:
            self._client.log_artifact(self._run_id, str(folder), "checkpoints")

    def end(self, error: str | None) -> None:
        if error is not None:
            self._client.set_tag(self._run_id, "agl.error", error)
        self._client.set_terminated(self._run_id, "FINISHED" if error is None else "FAILED")


def _key(text: str) -> str:
    """What names of metrics and files may consist of."""
    return re.sub(r"[^\w.\- /]", "_", text)


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        if isinstance(item, dict) and item:
            yield from _flat(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item
