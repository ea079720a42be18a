"""Training in which the weights change in this process, and are saved now and then."""

import asyncio
import logging
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

from annotated_types import Ge

from agl.utils.checks import check_choice
from agl_learning.advantages.estimator_option import Estimator, Foreseen
from agl_learning.advantages.overlong_penalty import Overlong
from agl_learning.advantages.weighing import (
    IdleReason,
    Weighed,
    WeighingOptions,
    check_weighing,
    weigh,
)
from agl_learning.collect.results import Collected
from agl_learning.collect.step_metrics import collected_metrics, version_lag
from agl_learning.collect.task_order import Tasks
from agl_learning.reports.report import warn_of_gap
from agl_learning.run.checkpoint import Progress, best_checkpoint
from agl_learning.run.folder import read_generation
from agl_learning.run.start import Origin, find_origin, folder_of, mend_generation
from agl_learning.trainer.base import Training
from agl_learning.trainer.comparison import digest_of
from agl_learning.trainer.ending import Ending
from agl_learning.trainer.learned import Learned, check_names, leave_out, read_update, read_weighed
from agl_learning.trainer.loop import run as run_steps
from agl_learning.trainer.options import Checkpoints, Stopping
from agl_learning.trainer.replay import replay as replay_step
from agl_learning.trainer.source import Ahead, InStep, Runners, Source, check_source, reject_stale
from agl_models.versions import WHOLE_SOFTMAX, Version
from agl_records.training_data import TrainingRow
from agl_records.types import EXCLUSION_REASONS, ExclusionReason
from agl_runs.options import AboveZero, Count, absolute, pick_options

Updated = Mapping[str, float] | tuple[Mapping[str, float], Sequence[Weighed]]
"""What an update says: its metrics, and perhaps which rows it used."""

logger = logging.getLogger("agl.learning")


@dataclass(kw_only=True, eq=False, repr=False)
class OnlineTraining(Training):
    """Roll out, weigh against the siblings, update, again; the base of ``GRPO``.

    A subclass gives ``load``, ``serve``, ``update`` and ``save``; it may use ``weights_version``.

    Args:
        steps: Training steps in all.
        groups_per_step: P, how many tasks a step has.
        group_size: G, how often each of them runs.
        max_refills: How often, at most, a step draws other tasks in the place of those whose groups
            taught nothing, as all their rewards were equal, say (dynamic sampling, DAPO).
        max_staleness: While a step is trained, the rollouts of so many later steps run: the weights
            that sample are up to so many updates behind those that learn. 0 waits for each step.
        estimator: How advantages are computed.
        overlong: What long answers cost. To train no answer that was cut off, give the adapter:
            ``{type: rows, truncated: mask}``.
        stopping: When a run ends before its last step.
        run_dir: Folder for ``metrics.jsonl``, ``summary.json`` and ``checkpoints``; None takes that
            of ``resume_from``, else that of the run (``run_dir`` of the file or the trainer), in
            which an earlier part of the run is continued, else a new one under ``agl-runs``.
        checkpoints: When weights are saved, and which of them stay.
        resume_from: A checkpoint, or a run's folder (then the newest that is whole): weights,
            optimiser, random states, step and the rewards so far come from there. A run that ended
            before its first checkpoint begins at step 0 again. In the folder of the same run, what
            came after the checkpoint is trained once more with the rollouts that it had, those that
            were under way run again, and later checkpoints get another name. A
            folder that a live process uses is refused. With another ``run_dir``
            it is a run of its own, which the same two options begin again; the folder of any other
            run is refused.
        temperature: Temperature of rollouts; the gateway has every call of the model use it,
            whatever the agent asks for.
    """

    safe_options = frozenset({"stopping", "checkpoints"})
    growing_options = frozenset({"steps"})
    why_unused: ClassVar[tuple[ExclusionReason, str]] = (
        "not_selected",
        "the update did not use its row",
    )
    """What the ledger says of rows that ``update`` does not name among those it used."""

    steps: Count = 100
    groups_per_step: Count = 8
    group_size: Count = 8
    max_refills: Annotated[int, Ge(0)] = 0
    max_staleness: Annotated[int, Ge(0)] = 0
    temperature: AboveZero = 1.0
    estimator: Estimator = Estimator()
    overlong: Overlong = Overlong()
    stopping: Stopping = Stopping()
    checkpoints: Checkpoints = Checkpoints()
    resume_from: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weighing(self.title, self)
        check_choice(self.title, [*EXCLUSION_REASONS], why_unused=self.why_unused[0])
        check_source(self.title, self)
        self.resume_from = absolute(self.resume_from)
        self.weights_version = 0
        """Which weights answer; one more after each update that used a row."""
        self._ending = Ending(self, self.stopping)
        self._gap_warned = False
        self._lags: dict[str, int] = {}

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
    def update(self, rows: list[Weighed]) -> Updated:
        """Change the weights; called in a thread, and no answer may mix those of before and after.

        Args:
            rows: At least one, with one advantage per call.

        Returns:
            Metrics of the step, if all rows were used; else the metrics and, of ``rows``, those
            that were: the ledger says of the others that they were not trained. A metric is a
            number, also of numpy or torch, under a name that the loop has not; one that is not
            finite is left out, with a warning. ``logprob_gap``, if there, is the mean distance
            between the log-probabilities recorded at sampling and the model's before the update, in
            nats.
        """

    def fingerprint(self) -> str | None:
        """What tells these weights from others, bit for bit; None where that costs too much."""
        return None

    def check_start(self, origin: Origin) -> None:
        """Refuse a start that cannot be, before a model is loaded.

        Raises:
            ConfigError: It cannot.
        """

    def weigh(self, collected: Collected) -> list[Weighed]:
        """What is trained, and how much; every call of the collection gets its bin.

        An override may leave rows out; the ledger says of those that they were not selected.
        """
        if self.max_staleness:
            self._lags = reject_stale(collected, self.weights_version, self.max_staleness)
        return weigh(collected, self.weighing, self.foresee, is_whole=self.trains_whole_rows)

    @property
    def weighing(self) -> WeighingOptions:
        """How rewards become advantages."""
        return pick_options(WeighingOptions, self)

    def estimator_of(self, model: str) -> str:
        """The name of what makes advantages of a model's calls; "" is the one model."""
        return self.estimator.type

    def why_unused_of(self, model: str) -> tuple[ExclusionReason, str]:
        """``why_unused`` of what trains a model; "" is the one model."""
        return self.why_unused

    @property
    def trains_whole_rows(self) -> bool:
        """Whether the loss has terms for calls without advantage, as a bonus for entropy."""
        return False

    def foresee(self, rows: list[TrainingRow]) -> Foreseen | None:
        """What the model has to say of the rows before their advantages are made; nothing."""
        return None

    run = run_steps
    replay = replay_step

    # --- the loop's questions

    @property
    def num_steps(self) -> int:
        return self.steps

    @property
    def num_copies(self) -> int:
        return self.group_size

    def intervals(self) -> dict[str, int | None]:
        return {**super().intervals(), "checkpoints": self.checkpoints.every}

    @property
    def num_kept(self) -> int | None:
        return self.checkpoints.keep_last

    @property
    def version(self) -> Version:
        return Version(self.weights_version, "")

    def digest(self) -> str | None:
        return self.fingerprint()

    def forced_sampling(self) -> Mapping[str, Any]:
        """The whole softmax, at which the log-probabilities are taken."""
        return WHOLE_SOFTMAX

    def find_start(self) -> Origin:
        self.gateway()
        run_dir, resume_from, steps = self.run_dir, self.resume_from, self.steps
        folder = self.get_run_folder()
        for each in filter(None, (folder, self.folder_of_options())):
            mend_generation(each)
        goes_on = self._run_context.goes_on
        if folder is not None and (run_dir is None or goes_on):
            run_dir = str(folder)
            # What it began from, with its options of then, is not where it goes on.
            is_begun = goes_on and resume_from and folder_of(Path(resume_from)) != folder
            if (resume_from is None or is_begun) and read_generation(folder) is not None:
                resume_from, steps = run_dir, None
        origin = find_origin(self.name, run_dir, resume_from, steps)
        self.check_folder(origin.folder)
        self.check_start(origin)
        return origin

    def folder_of_options(self, given: Path | None = None) -> Path | None:
        folder = super().folder_of_options(given)
        return folder or (folder_of(Path(self.resume_from)) if self.resume_from else None)

    async def begin(self, checkpoint: Path | None, progress: Progress, folder: Path) -> None:
        self.weights_version = progress.version
        self._ending.begin(progress)
        self.load(checkpoint, folder)
        self.session.collector.patience_seconds *= 1 + self.max_staleness

    def find_source(self, runners: Runners, tasks: Tasks, taken: int) -> Source:
        given = (runners, tasks, self.groups_per_step, taken)
        if self.max_staleness:
            return Ahead(*given, self.max_staleness, self.steps)
        return InStep(*given, self.max_refills, self.weigh if self.max_refills else None)

    def progress(self) -> dict[str, Any]:
        return self._ending.progress()

    # --- a step

    async def learn(self, collected: Collected, number: int) -> Learned:
        weighed = await asyncio.to_thread(self.weigh, collected)
        rows = read_weighed(self.title, weighed, collected.ledger)
        start, learned = time.perf_counter(), dict[str, Any]()
        if rows:
            shown = [one.copy() for one in rows]
            again = partial(self.session.requests.tell_again, algorithm=self)
            is_again = self.session.records.find_done("train", number - 1) is not None
            await (again if is_again else self.tell)("on_update_start", step=number, rows=shown)
            given, (learned, rows) = rows, await asyncio.to_thread(self.learn_now, rows)
            leave_out(collected.ledger, given, rows, self.why_unused_of)
        self.check_gap(f"step {number}", learned)
        seconds = time.perf_counter() - start
        metrics = {**self.measured(collected, rows), "time/update": seconds}
        check_names(self.title, learned, metrics)
        of_rows = [digest_of(one) for one in rows], [one.row.rollout_id for one in rows]
        return Learned({**metrics, **learned}, bool(rows), *of_rows)

    def learn_now(self, rows: list[Weighed]) -> tuple[dict[str, Any], list[Weighed]]:
        """Change the weights by one row or more, in the thread that asks; metrics, rows used."""
        lag = version_lag([one.row for one in rows], self.weights_version)
        # A list of its own: an update may drain it.
        learned, used = read_update(self.title, self.update([*rows]), rows)
        self.weights_version += bool(used)
        return {**learned} if lag is None else {**learned, "version_lag": lag}, used

    def measured(self, collected: Collected, rows: list[Weighed]) -> dict[str, Any]:
        """Metrics of a step, but for those of its place, its time and its update."""
        groups = len({one.group for one in collected.ended})
        refilled = {"groups/refilled": groups - self.groups_per_step} if self.max_refills else {}
        return {
            "version": self.weights_version,
            **collected_metrics(collected, self.trained_model()),
            "rows": len(rows),
            **(self._lags if self.max_staleness else refilled),
        }

    def saves_after(self, number: int, last: bool, asked: bool) -> bool:
        is_due = asked or number % (self.checkpoints.every or number + 1) == 0
        return last or (is_due and self._ending.idle_steps == 0)  # idle steps may be given up

    def summed_up(self) -> dict[str, Any]:
        session = self.session
        path = session.checkpoint
        best = best_checkpoint(session.folder, session.val_rewards)
        return {
            "steps": session.steps_done,
            "checkpoint": None if path is None else str(path),
            "best_checkpoint": None if best is None else str(best[0]),
        }

    # --- when it ends, and what is odd

    def why_over(self) -> str:
        own = self.session.rewards[self.session.begun_at :]
        return super().why_over() or self._ending.why_over(own)

    async def check_end(self) -> None:
        await self._ending.check_end()

    def idle_reason(self, collected: Collected) -> IdleReason:
        """Why nothing of what was collected was trained; see ``WeighingOptions``."""
        return self.weighing.idle_reason(collected)

    def check_gap(self, when: str, learned: Mapping[str, float]) -> None:
        """Warn, once, where an update says that what sampling recorded is not the model's."""
        if learned.get("version_lag") == 0 and not self._gap_warned:
            gap = learned.get("logprob_gap")
            self._gap_warned = warn_of_gap(when, gap, self.temperature)

    async def after_step(self, number: int, collected: Collected, trained: bool) -> None:
        reason = "" if trained else self.idle_reason(collected)
        if reason != "draw":
            await self._ending.after_step(number, collected, trained, reason == "solved")
