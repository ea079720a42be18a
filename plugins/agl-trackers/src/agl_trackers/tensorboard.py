"""TensorBoard: event files in the run's folder."""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from agl_trackers.records import Prompt, RunAbout, Sample, as_code
from agl_trackers.tracker import Tracker


@dataclass(kw_only=True, eq=False)
class TensorBoard(Tracker):
    """Writes event files, which ``tensorboard --logdir agl-runs`` shows.

    Scalars are the metrics of steps and evaluations. Configuration, rollouts, prompts and names of
    checkpoints are texts; TensorBoard keeps no files. A run that goes on writes to the same folder,
    and TensorBoard hides what its earlier starts wrote of the steps that come again.
    """

    label: ClassVar[str] = "tensorboard"
    package: ClassVar[str | None] = "tensorboardX"
    log_dir: str | None = None
    """Folder of the events; the run's folder, in ``tensorboard``, if left out. A name in it, as
    ``{run_id}``, is replaced."""

    def begin(self, about: RunAbout) -> None:
        self._about, self._writer = about, None
        self._held: list[tuple[int, Prompt]] = []
        """Prompts that came before the first step of a run that goes on: only that step says from
        where on earlier events are to be hidden."""
        if about.generation == 1:
            self._open(None)

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        writer = self._open(step)
        self._write_held()
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    def log_rollouts(self, step: int, samples: Sequence[Sample]) -> None:
        columns = ["rollout_id", "status", "reward", "task", "conversation", "error"]
        lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
        for sample in samples:
            row = sample.as_row(step)
            lines.append(f"| {' | '.join(_cell(row[name]) for name in columns)} |")
        self._open(step).add_text("rollouts", "\n".join(lines), step)

    def log_prompt(self, step: int, prompt: Prompt) -> None:
        self._held.append((step, prompt))
        if self._writer is not None:
            self._write_held()

    def _write_held(self) -> None:
        for step, prompt in self._held:
            self._open(step).add_text(f"prompts/{prompt.name}", prompt.as_markdown(), step)
        self._held = []

    def log_checkpoint(self, step: int, path: str, folder: Path | None) -> None:
        self._open(step).add_text("checkpoint", f"`{path}`", step)

    def end(self, error: str | None) -> None:
        writer = self._open(None)
        self._write_held()
        if error is not None:
            writer.add_text("error", error)
        writer.close()
        self._writer = None

    def _open(self, step: int | None) -> Any:
        """The writer; that of a run that goes on begins at the first step that comes."""
        if self._writer is None:
            from tensorboardX import SummaryWriter

            about = self._about
            folder = (about.folder or Path()) / "tensorboard"
            if self.log_dir is not None:
                folder = Path(self.log_dir.replace("{run_id}", about.run_id))
            purge = step if about.generation > 1 else None
            self._writer = SummaryWriter(
                str(folder),
                purge_step=purge,
                # Its files are named by the second: that of a start right before, or of another
                # such tracker of this one, would be emptied.
                filename_suffix=f".start-{about.generation}-{secrets.token_hex(4)}",
            )
            config = json.dumps(about.config, indent=2, default=str)
            self._writer.add_text("config", as_code(config), 0)
        return self._writer


def _cell(value: Any) -> str:
    """A cell of a table in Markdown, which knows no line breaks."""
    text = "" if value is None else str(value)
    return text.replace("|", "\\|").replace("\n", "<br>")
