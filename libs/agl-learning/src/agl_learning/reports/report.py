"""What a run tells: a line of JSON per step, a progress bar, a summary."""

import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agl.algorithm.base import Algorithm
from agl_learning.reports.diagnostics import Diagnostics, Finding, nothing_to_gain
from agl_learning.reports.json_lines import read_json_lines
from agl_learning.reports.progress_bar import Bar
from agl_learning.reports.run_metrics import RunMetrics
from agl_runs.files import make_private_folder, sync, write_whole
from agl_runs.result import SUMMARY

logger = logging.getLogger("agl.learning")

Tell = Callable[..., Awaitable[None]]
"""Calls a hook by its name, see ``Algorithm.tell``."""
GAP_LIMIT = 0.05
"""Nats between recorded and present log-probabilities that rounding does not explain."""


def warn_of_gap(when: str, gap: float | None, temperature: float) -> bool:
    """Warn where recorded log-probabilities differ by ``gap`` nats; whether that was so."""
    if gap is None or gap <= GAP_LIMIT:
        return False
    logger.warning(
        "%s: the recorded log-probabilities differ by %.2f nats on average from the model's at "
        "temperature %s. Does the agent sample with another temperature or top_p, and the gateway "
        "not set this one?",
        when,
        gap,
        temperature,
    )
    return True


@dataclass(eq=False)
class Report:
    """Writes ``metrics.jsonl`` and ``summary.json`` in a folder, and a bar on standard error.

    Where standard error is no terminal, each step is one line of the log instead.

    Args:
        algorithm: Whose steps these are; the hooks of its run hear of them.
        name: Of the algorithm.
        folder: Made when it is not there; metrics of an earlier part of the run are kept.
        steps: How many there will be.
        done: How many there have been.
        show_progress: Whether to show anything.
    """

    algorithm: Algorithm
    name: str
    folder: Path
    steps: int
    done: int
    show_progress: bool

    def __post_init__(self) -> None:
        # Absolute: an agent in this process may change its folder.
        self.folder = self.folder.absolute()
        make_private_folder(self.folder)
        self.metrics_path = self.folder / RunMetrics.FILE
        self._estimator_of = getattr(self.algorithm, "estimator_of", str)
        self._diagnostics = Diagnostics(self.steps, self._estimator_of)
        self._is_frozen = False
        texts = {"reward": "reward   -  ", "held_out": ""}
        self.bar = Bar(self.name, self.steps, self.done, shows=self.show_progress, **texts)

    def go_back(
        self, step: int, evaluated: bool, noted: Iterable[Mapping[str, Any]] = ()
    ) -> set[int]:
        """Drop the metrics of what came after a checkpoint, and give the steps that are left.

        Args:
            step: Of the checkpoint.
            evaluated: Whether the evaluation after that step belongs to it.
            noted: Metrics that stand elsewhere, too; those that the file lost come back.
        """
        kept: dict[tuple[int, bool], Mapping[str, Any]] = {}
        for line in (*noted, *self._read()):
            number, is_evaluation = line.get("step"), any(k.startswith("val/") for k in line)
            if not isinstance(number, int):
                continue
            if number < step or (number == step and (evaluated or not is_evaluation)):
                kept[number, is_evaluation] = line
        text = "".join(_text(kept[place]) for place in sorted(kept))
        if text or self.metrics_path.exists():
            write_whole(self.metrics_path, text)
        steps = sorted(number for number, is_evaluation in kept if not is_evaluation)
        self._diagnostics = Diagnostics(self.steps, self._estimator_of)
        for number in steps:
            self._diagnostics.add(kept[number, False])
        return {*steps}

    def _read(self) -> list[dict[str, Any]]:
        """The lines of the file; what is none of ours, or was cut off by a kill, is left out."""
        read = read_json_lines(self.metrics_path)
        if read.unread:
            logger.warning("%s", read.unread)
        return [line for _, line in read.objects]

    def of_run(self) -> dict[str, Any]:
        """What the summary says by the metrics of the run.

        Returns:
            ``val/mean@n`` and ``val/pass@k`` of the last evaluation, where tasks ran several times;
            ``warnings``: what keeps the run from learning; ``weights_changed``: False where every
            gradient was 0.
        """
        evaluations = [line for line in self._read() if "val/rollouts/succeeded" in line]
        last: dict[str, Any] = evaluations[-1] if evaluations else {}
        copies = {name: value for name, value in last.items() if "@" in name}
        warnings = [str(finding) for finding in Finding.read(self.folder)[0]]
        is_unchanged = self._is_frozen or self._diagnostics.is_unchanged
        changed = {"weights_changed": False} if is_unchanged else {}
        return {**copies, **changed, "warnings": warnings}

    def write(self, metrics: dict[str, Any]) -> None:
        """Append one line; None values are left out."""
        with self.metrics_path.open("a") as file:
            file.write(_text(metrics))

    def sync(self) -> None:
        """Wait until all lines are on the disk."""
        if self.metrics_path.exists():
            sync(self.metrics_path)

    async def step(self, number: int, metrics: dict[str, Any], tell: Tell | None = None) -> None:
        """A training step has ended; ``tell`` has hooks hear of it, by default all of them."""
        self.write(metrics)
        reward = metrics.get("reward/mean")
        shown = "none" if reward is None else f"{reward:.3f}"
        if self.bar.is_seen:
            self.bar.update(number, reward=f"reward {shown}")
        elif self.show_progress:
            logger.info(
                "step %d of %d: reward %s, %d calls trained, %.1f s",
                number,
                self.steps,
                shown,
                metrics["calls/trained"],
                metrics["time/step"],
            )
        self._diagnostics.add(metrics)
        self._warn(self._diagnostics.found())
        tell = tell or self.algorithm.tell
        await tell("on_step_end", step=number, metrics=dict(metrics))

    def _warn(self, findings: Iterable[Finding]) -> None:
        """Say once, in the log and in the folder, what keeps the run from learning."""
        said = {(one.code, one.model) for one in Finding.read(self.folder)[0]}
        for finding in findings:
            if (finding.code, finding.model) not in said:
                logger.warning("step %d: %s", finding.step, finding)
                finding.write(self.folder)

    def say_unchanging(self, option: str) -> None:
        """Say of a run that begins that an option, which is 0, keeps its weights as they are."""
        self._is_frozen = True
        finding = Finding(
            "no_learning",
            0,
            f"{option} is 0, so no step changes the weights",
            "the option was turned off for a trial",
            f"Give {option}, or leave it out",
        )
        self._warn([finding])

    async def evaluation(
        self, step: int, metrics: dict[str, Any], tell: Tell | None = None
    ) -> None:
        """An evaluation has ended; for ``tell``, see ``step``."""
        self.write(metrics)
        reward = metrics.get("val/reward/mean")
        shown = "none" if reward is None else f"{reward:.3f}"
        if self.bar.is_seen:
            self.bar.update(held_out=f"held-out {shown}")
        elif self.show_progress:
            logger.info("after step %d: held-out reward %s", step, shown)
        if step == 0 and (sign := nothing_to_gain(metrics)) is not None:
            self._warn([sign])
        tell = tell or self.algorithm.tell
        await tell("on_evaluation_end", step=step, metrics=dict(metrics))

    def summary(self, summary: dict[str, Any], generation: int | None) -> None:
        """Write ``summary.json``, which says of which start of the run it is."""
        said = {**summary, "generation": generation}
        write_whole(self.folder / SUMMARY, json.dumps(said, indent=2) + "\n")


def _text(metrics: Mapping[str, Any]) -> str:
    return json.dumps({name: at for name, at in metrics.items() if at is not None}) + "\n"
