"""Trackio: Hugging Face's small tracker, whose data lie on this machine or in a Space."""

import importlib
import logging
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from agl_trackers.records import Prompt, RunAbout, Sample
from agl_trackers.tracker import Tracker

logger = logging.getLogger("agl.trackers")


@dataclass(kw_only=True, eq=False)
class Trackio(Tracker):
    """Writes to Trackio's folder, which ``trackio show --project PROJECT`` shows, or to a server.

    Rollouts are a table per step, prompts texts and versions of an artefact ``RUN-prompt-NAME``,
    checkpoints versions of the artefact ``RUN-checkpoint``. A run that goes on is the same run
    there.
    """

    label: ClassVar[str] = "trackio"
    package: ClassVar[str | None] = "trackio"
    project: str = "agl"
    """Project in Trackio."""
    name: str | None = None
    """What the run is called, before its id."""
    group: str | None = None
    """Group of the run, in Trackio's list."""
    space_id: str | None = None
    """Hugging Face Space that gets the run; this machine does if left out."""
    server_url: str | None = None
    """Trackio server that gets the run, with its ``write_token``; this machine does if left out."""

    def begin(self, about: RunAbout) -> None:
        _print_to_log()
        # A run that goes on is found by its name alone, which so has to be its own.
        self._name = about.run_id if self.name is None else f"{self.name} {about.run_id}"
        self._run = self.library.init(
            project=self.project,
            name=self._name,
            group=self.group,
            config={"algorithm_name": about.algorithm, **about.config},
            resume="allow" if about.generation > 1 else "never",
            space_id=self.space_id,
            server_url=self.server_url,
            embed=False,
            auto_log_cpu=False,
        )

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def log_rollouts(self, step: int, samples: Sequence[Sample]) -> None:
        rows = [sample.as_row(step) for sample in samples]
        table = self.library.Table(list(rows[0]), [list(row.values()) for row in rows])
        self._run.log({"rollouts": table}, step=step)

    def log_prompt(self, step: int, prompt: Prompt) -> None:
        text = self.library.Markdown(prompt.as_markdown())
        self._run.log({f"prompts/{prompt.name}": text}, step=step)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "prompt.txt"
            file.write_text(prompt.text, encoding="utf-8")
            self._log_artefact(
                f"prompt-{prompt.name}", "prompt", step, file, version=prompt.version
            )

    def log_checkpoint(self, step: int, path: str, folder: Path | None) -> None:
        self._run.log({"checkpoint": self.library.Markdown(f"`{path}`")}, step=step)
        if folder is not None:
            self._log_artefact("checkpoint", "model", step, folder, path=path)

    def end(self, error: str | None) -> None:
        if error is not None:
            self._run.alert("The run failed", error, self.library.AlertLevel.ERROR)
        self._run.finish()

    def _log_artefact(self, name: str, kind: str, step: int, file: Path, **about: Any) -> None:
        word = re.sub(r"[^A-Za-z0-9._-]", "-", f"{self._name}-{name}")
        artefact = self.library.Artifact(word, kind, metadata={"step": step, **about})
        add = artefact.add_dir if file.is_dir() else artefact.add_file
        add(file)
        self._run.log_artifact(artefact, aliases=[f"step-{step}"])


def _print_to_log() -> None:
    """Keep off stdout, where the data of a command go, what Trackio prints; it has no option."""

    def say(*values: object, **_: object) -> None:
        logger.info("trackio: %s", " ".join(map(str, values)))

    for name in ("trackio", "trackio.deploy", "trackio.run", "trackio.utils"):
        vars(importlib.import_module(name))["print"] = say
