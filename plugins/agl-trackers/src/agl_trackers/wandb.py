"""Weights & Biases: a run there, or a folder that ``wandb sync`` sends later."""

import logging
import os
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from agl_trackers.records import Prompt, RunAbout, Sample
from agl_trackers.tracker import Tracker

logger = logging.getLogger("agl.trackers")

PROMPT_COLUMNS = ["step", "name", "version", "text"]
MOST_PROMPTS = 200
"""Lines of the table of prompts; older ones are artefacts all the same."""


@dataclass(kw_only=True, eq=False)
class WandB(Tracker):
    """Writes to Weights & Biases; a run that goes on is the same run there.

    It never asks for a login: where nobody has logged in it writes to a folder, as ``offline``
    does, and says how to send it. Metrics have the axis ``step``. Rollouts are a table per step,
    prompts one table and a version each of an artefact ``RUN-prompt-NAME``, checkpoints versions of
    the artefact ``RUN-checkpoint``.
    """

    label: ClassVar[str] = "wandb"
    package: ClassVar[str | None] = "wandb"
    project: str = "agl"
    """Project in W&B."""
    entity: str | None = None
    """User or team; your own if left out."""
    name: str | None = None
    """What the run is called; its id if left out."""
    group: str | None = None
    """Group of the run, in W&B's list."""
    tags: list[str] = field(default_factory=list[str])
    """Tags of the run, in W&B."""
    mode: Literal["online", "offline"] | None = None
    """``offline`` writes to a folder only. Left out: what ``WANDB_MODE`` says, or else online where
    somebody has logged in."""
    dir: str | None = None
    """Where W&B's own folder ``wandb`` is; the run's folder if left out."""

    def begin(self, about: RunAbout) -> None:
        mode = self.mode or os.environ.get("WANDB_MODE")
        if mode is None and not self.library.login(prompt=False, verify=False):
            mode = "offline"
            logger.info("wandb: nobody has logged in, so the run is written to a folder only")
        self._id = about.run_id
        self._said: deque[list[Any]] = deque(maxlen=MOST_PROMPTS)
        self._run = self.library.init(
            project=self.project,
            entity=self.entity,
            id=self._id,
            name=self.name or about.run_id,
            group=self.group,
            tags=self.tags or None,
            job_type=about.algorithm or None,
            config=dict(about.config),
            dir=self.dir or (None if about.folder is None else str(about.folder)),
            mode=mode,
            resume=None if mode == "offline" else "allow",
            reinit="create_new",  # an agent's own run stays as it is
            settings=self.library.Settings(console="off", silent=True, save_code=False),
        )
        # Not W&B's own step, which never goes back: evaluations come after the step's metrics.
        self._run.define_metric("*", step_metric="step")

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({"step": step, **metrics})

    def log_rollouts(self, step: int, samples: Sequence[Sample]) -> None:
        rows = [sample.as_row(step) for sample in samples]
        self._log_table("rollouts", step, list(rows[0]), [list(row.values()) for row in rows])

    def log_prompt(self, step: int, prompt: Prompt) -> None:
        self._said.append([step, prompt.name, prompt.version, prompt.text])
        self._log_table("prompts", step, PROMPT_COLUMNS, list(self._said))
        artefact = self._artefact(f"prompt-{prompt.name}", "prompt", step, version=prompt.version)
        with artefact.new_file("prompt.txt", encoding="utf-8") as file:
            file.write(prompt.text)
        self._run.log_artifact(artefact, aliases=[f"step-{step}", _word(prompt.version)])

    def log_checkpoint(self, step: int, path: str, folder: Path | None) -> None:
        self._run.summary["checkpoint"] = path
        if folder is None:
            return
        artefact = self._artefact("checkpoint", "model", step, path=path)
        add = artefact.add_dir if folder.is_dir() else artefact.add_file
        add(str(folder))
        self._run.log_artifact(artefact, aliases=[f"step-{step}"])

    def end(self, error: str | None) -> None:
        if error is not None:
            self._run.summary["error"] = error
        is_offline, folder = self._run.settings.mode == "offline", Path(self._run.dir).parent
        self._run.finish(exit_code=0 if error is None else 1)
        if is_offline:
            logger.info("wandb: to send the run: wandb sync %s", folder)

    def _log_table(self, name: str, step: int, columns: list[str], rows: list[list[Any]]) -> None:
        table = self.library.Table(columns=columns, data=rows, allow_mixed_types=True)
        self._run.log({"step": step, name: table})

    def _artefact(self, name: str, kind: str, step: int, **about: Any) -> Any:
        name = _word(f"{self._id}-{name}")
        return self.library.Artifact(name, kind, metadata={"step": step, **about})


def _word(text: str) -> str:
    """What names and aliases of artefacts may consist of."""
    return re.sub(r"[^\w.\-]", "-", text)
