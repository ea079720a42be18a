"""Training in which the weights change in this process: one step, and the same step again."""

import asyncio
import tempfile
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from agl.errors import AlgorithmError, ConfigError
from agl_learning.advantages.weighing import WeighingOptions, weigh
from agl_learning.run.start import folder_of
from agl_learning.trainer.loop import Training
from agl_records.types import Exclusion, ExclusionReason

if TYPE_CHECKING:
    from agl_learning.advantages.estimates import Foreseen
    from agl_learning.advantages.weighing import Weighed
    from agl_learning.collect.results import Collected
    from agl_learning.resume.replay_result import Replay
    from agl_records.ledger.ledger import Ledger
    from agl_records.training_data import TrainingRow

    Updated = Mapping[str, float] | tuple[Mapping[str, float], Sequence[Weighed]]
    """What an update says: its metrics, and perhaps which rows it used."""


@dataclass(kw_only=True, eq=False, repr=False)
class InPlaceTraining(Training, WeighingOptions):
    """What a subclass says of its model, and what a step makes of what was collected for it."""

    why_unused: ClassVar[tuple[ExclusionReason, str]] = (
        "not_selected",
        "the update did not use its row",
    )
    """What the ledger says of rows that ``update`` does not name among those it used."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.weights_version = 0
        """Which weights answer; one more after each update."""

    # --- what a subclass says

    @abstractmethod
    def load(self, checkpoint: Path | None, folder: Path) -> None:
        """Load or build the model, as a checkpoint has it or anew.

        Args:
            checkpoint: What ``save`` wrote; None begins.
            folder: Of the run.

        Raises:
            ConfigError: A model, a device or a checkpoint that will not do.
        """

    @abstractmethod
    def update(self, rows: "list[Weighed]") -> "Updated":
        """Change the weights; called in a thread, and no answer may mix those of before and after.

        Args:
            rows: At least one, with one advantage per call.

        Returns:
            Metrics of the step, if all rows were used; else the metrics and, of ``rows``, those
            that were: the ledger says of the others that they were not trained. ``logprob_gap``, if
            there, is the mean distance between the log-probabilities recorded at sampling and the
            model's before the update, in nats.
        """

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write what ``load`` needs into a folder."""

    def fingerprint(self) -> str | None:
        """What tells these weights from others, bit for bit; None where that costs too much."""
        return None

    def weigh(self, collected: "Collected") -> "list[Weighed]":
        """What is trained, and how much; every call of the collection gets its bin."""
        return weigh(collected, self, self.foresee)

    def foresee(self, rows: "list[TrainingRow]") -> "Foreseen | None":
        """What the model has to say of the rows before their advantages are made; nothing."""
        return None

    # --- a step

    async def learn(
        self, rows: "list[Weighed]", ledger: "Ledger"
    ) -> "tuple[dict[str, float], list[Weighed]]":
        """Change the weights, if there is anything to learn from; metrics, and the rows used."""
        if not rows:
            return {}, []
        learned, used = await asyncio.to_thread(self.learn_now, rows)
        leave_out(ledger, rows, used, *self.why_unused)
        return learned, used

    def learn_now(self, rows: "list[Weighed]") -> "tuple[dict[str, float], list[Weighed]]":
        """Likewise, of one row or more, in the thread that asks for it."""
        from agl_learning.collect.step_metrics import version_lag

        lag = version_lag([one.row for one in rows], self.weights_version)
        updated = self.update(rows)
        learned, used = updated if isinstance(updated, tuple) else (updated, rows)
        self.weights_version += 1
        return {**learned, "version_lag": lag}, list(used)

    def measured(
        self, collected: "Collected", rows: "list[Weighed]", learned: Mapping[str, float]
    ) -> dict[str, Any]:
        """Metrics of a step, but for those of its place and its time."""
        from agl_learning.collect.step_metrics import collected_metrics

        return {
            "version": self.weights_version,
            **collected_metrics(collected, self.trained_model()),
            "rows": len(rows),
            **self.particulars(collected),
            **learned,
        }

    def particulars(self, collected: "Collected") -> dict[str, int]:
        """Metrics of what only some options bring."""
        return {}

    async def replay(self, step: int) -> "Replay":
        """Load the newest whole checkpoint before a step, and train from there up to it.

        Of each step it reads from the store what the run had collected for it. What the run wrote
        is not touched; a folder of its own, that goes afterwards, takes what is written.
        """
        from agl_learning.resume.replay import (
            check_rollouts,
            compare_accounts,
            compare_metrics,
            compare_rows,
            compare_weights,
            new_replay,
            note_options,
            read_again,
            step_of,
            trained_steps,
        )
        from agl_learning.run.checkpoint import Progress
        from agl_learning.run.generations import read_generation
        from agl_learning.run.journal import Journal

        folder = self.get_run_folder() or self.folder_of_options()
        begun = None if folder is None else read_generation(folder)
        if folder is None or begun is None:
            raise ConfigError(f"{self.title}: there is no run in {str(folder)!r}")
        journal = Journal.of(folder)
        steps = trained_steps(journal)
        wanted = step_of(steps, step, folder)
        checkpoint = await asyncio.to_thread(self._checkpoint_before, folder, step)
        progress = Progress(0, 0) if checkpoint is None else Progress.of(checkpoint)
        again = {n: step_of(steps, n, folder) for n in range(progress.step + 1, step + 1)}
        collector = self.collector()
        keys = {number: entry["key"] for number, entry in again.items()}
        await check_rollouts(
            collector, journal, keys, lambda missing: _what_is_left(folder, missing, progress.step)
        )
        exact = wanted["weights"] is not None and self.deterministic
        replay = new_replay(step, progress.step, exact)
        note_options(replay, journal, self)
        with tempfile.TemporaryDirectory(prefix="agl-replay-") as scratch:
            self.weights_version = progress.version
            self.load(checkpoint, Path(scratch))
            collector.model = self.trained_model()
            if progress.step in steps:
                name = f"weights after step {progress.step}"
                compare_weights(replay, name, steps[progress.step]["weights"], self.fingerprint())
            for number, entry in again.items():
                collected = await read_again(collector, journal, entry["key"])
                rows = await asyncio.to_thread(self.weigh, collected)
                learned, rows = await self.learn(rows, collected.ledger)
                if number == step:
                    await compare_accounts(replay, self.get_store(), begun.run, collected)
                    compare_rows(replay, entry.get("rows"), rows)
                    now = self.measured(collected, rows, learned)
                    compare_metrics(replay, entry["metrics"], now)
                name = f"weights after step {number}"
                compare_weights(replay, name, entry["weights"], self.fingerprint())
        return replay

    def _checkpoint_before(self, folder: Path, step: int) -> Path | None:
        """The newest whole one that a step can be trained from; None is the run's beginning.

        Raises:
            ConfigError: The run began from another run's checkpoint, and that is gone.
        """
        from agl_learning.run.checkpoint import Progress, find_checkpoint, whole_checkpoints
        from agl_learning.run.generations import read_generation

        for checkpoint in whole_checkpoints(folder):
            if Progress.of(checkpoint).step < step:
                return checkpoint
        begun = read_generation(folder)
        if begun is None or begun.origin is None:
            return None
        if folder_of(Path(begun.origin)) == Path(begun.origin):
            return None  # a run that had no checkpoint yet, whatever it has by now
        try:
            return find_checkpoint(begun.origin)
        except ConfigError as error:
            raise ConfigError(
                f"step {step} cannot be trained again: the run began from {begun.origin!r}, which "
                f"is not whole any more ({error}), and no checkpoint of its own from before that "
                f"step is kept. {_what_is_left(folder, step)}"
            ) from error


def leave_out(
    ledger: "Ledger",
    rows: "Sequence[Weighed]",
    used: "Sequence[Weighed]",
    reason: ExclusionReason,
    detail: str,
) -> None:
    """Say of the rows that an update did not use that they were not trained.

    Raises:
        AlgorithmError: It says that it used others than it was given.
    """
    given, taken = {id(one): one.row for one in rows}, {id(one) for one in used}
    if taken - given.keys():
        raise AlgorithmError(
            f"update returned {len(taken - given.keys())} rows that it was not given. Return "
            "some of those that it was"
        )
    left = [row for key, row in given.items() if key not in taken]
    calls = {(row.rollout_id, row.attempt_id, one) for row in left for one in row.call_ids}
    unused = [item for item in ledger.trained if item.key in calls]
    ledger.trained[:] = [item for item in ledger.trained if item.key not in calls]
    for item in unused:
        ledger.exclude(
            Exclusion(
                rollout_id=item.rollout_id,
                attempt_id=item.attempt_id,
                call_id=item.call_id,
                credit=item.credit,
                advantage=item.advantage,
                reason=reason,
                detail=detail,
            )
        )


def _what_is_left(folder: Path, missing: int, begun_at: int | None = None) -> str:
    """Which steps can be trained again, for a message.

    Args:
        folder: Of the run.
        missing: The step that cannot.
        begun_at: Of the whole checkpoint before it; None where there is none.
    """
    from agl_learning.run.checkpoint import Progress, whole_checkpoints

    left: list[str] = []
    if begun_at is not None and missing > begun_at + 1:
        left.append(f"steps {begun_at + 1} to {missing - 1}")
    kept = [Progress.of(checkpoint).step for checkpoint in whole_checkpoints(folder)]
    if later := [step for step in kept if step >= missing]:
        left.append(f"those after step {min(later)}")
    return f"What can be trained again: {' and '.join(left) or 'nothing'}"
