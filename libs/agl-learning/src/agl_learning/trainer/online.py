"""Training in which the weights change in this process, and are saved now and then.

A run that is killed goes on from its newest whole checkpoint (``resume_from``). What came after is
done again with the rollouts that it had: those that a step had collected, by ``journal.jsonl``, are
read from the store and trained in their order, and only what was under way runs once more. Metrics
of a step, one JSON object per line of ``metrics.jsonl``:

- ``step``; ``generation``: in which start of the run, from 1
- ``reward/mean``, ``reward/std`` over rollouts with a reward (failed ones have none)
- ``rollouts/succeeded``, ``rollouts/failed``; ``rollouts/infrastructure``: those that succeeded
  although servers or the network failed a model call; ``rows``: token sequences that were trained
- ``calls/truncated``: answers of the model that the limit of tokens cut off, whatever became of
  them; ``calls/broken_tool_call``: those in rows that call a tool with arguments that are no JSON
- ``prompts/different``, ``prompts/as_tokens``, ``tokens/unknown``: whether what agents say reaches
  the model, see ``agl_learning.collect.prompt_checks``
- ``judge/groups``, ``judge/equal``, ``judge/failed``, with the credit rule ``judge``: groups that
  were scored, those of them with one score for all, and those without scores
- ``tokens/sampled``, ``tokens/given``: of all calls of the model, trained or not, those of failed
  attempts included; where a call continues a conversation, what was before counts once
- ``calls/total``, ``calls/trained``, ``calls/excluded/<reason>``: total is the sum of the others
- what ``update`` says; ``version_lag``: how far, on average, the weights that sampled were behind
  the ones that were then changed
- ``version``: of the weights that the step made
- ``version_lag/max``, ``rollouts/stale``, ``time/idle``, with ``max_staleness``: the farthest that
  weights were behind, the rollouts that were rejected as they were farther than allowed, and the
  seconds in which nothing was computed, for rollouts had not ended
- ``groups/refilled``, where ``max_refills`` allows any: groups in the place of others
- ``time/step``, ``time/rollouts``, ``time/update``: seconds; ``time/rollouts_at_once``: a mean

Evaluations have ``step``, ``generation``, and ``reward``, ``rollouts``, ``calls`` and
``time/rollouts`` of theirs under ``val/``; with several copies ``mean@n`` and ``pass@k``, too,
which ``summary.json`` has of the last one.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agl.errors import AlgorithmError, ConfigError
from agl.types import Dataset
from agl_learning.advantages.weighing import is_a_draw, is_solved
from agl_learning.reports.report import warn_of_gap
from agl_learning.resume.collection_journal import begin, give_up_since, key_of, note_trained
from agl_learning.resume.replay import digest_of
from agl_learning.run.generations import (
    begin_generation,
    begun_by_trainer,
    cancel_dead_starts,
    keep_branch,
    read_generation,
)
from agl_learning.run.journal import Journal, mend_generation, read_entries
from agl_learning.run.start import find_origin, folder_of
from agl_learning.trainer.group_collection import GatheringTraining
from agl_models.gateways import WHOLE_SOFTMAX
from agl_models.versions import Version
from agl_records.options import AboveZero, Count, absolute

if TYPE_CHECKING:
    from agl.store.base import LightningStore
    from agl_learning.collect.results import Collected
    from agl_learning.resume.session import Session
    from agl_learning.run.start import Origin

logger = logging.getLogger("agl.learning")

TARGET_STEPS = 3
"""So many steps in a row must reach ``target_reward``."""


@dataclass(kw_only=True, eq=False, repr=False)
class OnlineTraining(GatheringTraining):
    """Roll out, weigh against the siblings, update, again; the base of ``GRPO``.

    A subclass gives ``load``, ``serve``, ``update`` and ``save``; it may use ``weights_version``.

    Args:
        target_reward: End when the mean rewards of three steps in a row have reached it.
        max_idle_steps: Fail after so many steps in a row in which nothing could be trained, and at
            the end of a run that trained nothing; end well when, after something was learned,
            nothing has an advantage any more: the rewards of every group have become equal, say.
        run_dir: Folder for ``metrics.jsonl``, ``summary.json`` and ``checkpoints``; None takes that
            of ``resume_from``, else that of the run (``run_dir`` of the file or the trainer), in
            which an earlier part of the run is continued, else a new one under ``agl-runs``.
        checkpoint_every: Save after so many steps; after the last step in any case.
        keep_last: Keep so many of the newest checkpoints, and the best by held-out reward; None
            keeps all.
        resume_from: A checkpoint, or a run's folder (then the newest that is whole and that its
            last start made or went on from): weights, optimiser, random states, step and the
            rewards so far come from there. A run that ended before its first checkpoint begins at
            step 0 again. In the folder of the same run, what came after the checkpoint is trained
            once more with the rollouts that it had, and those that were under way run again. A
            folder that a live process uses is refused. With another ``run_dir``
            it is a run of its own, which the same two options begin again; the folder of any other
            run is refused.
        temperature: At which rollouts are sampled; the gateway has every call of the model use it,
            whatever the agent asks for.
    """

    safe_options = frozenset({"target_reward", "max_idle_steps", "checkpoint_every", "keep_last"})

    temperature: AboveZero = 1.0
    target_reward: float | None = None
    max_idle_steps: Count = 10
    checkpoint_every: Count | None = None
    keep_last: Count | None = None
    resume_from: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_last is not None and self.checkpoint_every is None:
            raise ConfigError(
                f"{self.title}: keep_last removes older checkpoints, and without checkpoint_every "
                "there is one, at the end. Give checkpoint_every, or leave it out"
            )
        self.resume_from = absolute(self.resume_from)
        self._origin: Origin | None = None
        self._gap_warned = False

    def check_start(self, origin: "Origin") -> None:
        """Refuse a start that cannot be, before a model is loaded.

        Raises:
            ConfigError: It cannot.
        """

    # --- the loop's questions

    @property
    def version(self) -> Version:
        return Version(self.weights_version, "")

    def forced_sampling(self) -> Mapping[str, Any]:
        """The whole softmax, at which the log-probabilities are taken."""
        return WHOLE_SOFTMAX

    def find_start(self) -> "Origin":
        """Where the run begins; everything that can be refused before a model is loaded is.

        Raises:
            ConfigError: There is no gateway, or it has a model of our name; checkpoint or folder
                are not usable, or nothing is left to do.
        """
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
        before = origin.progress().identity
        if not origin.is_same_run:  # it may have another model, and is of the same algorithm
            before = {name: value for name, value in before.items() if name == "algorithm"}
        self.check_identity(origin.folder, before)
        read_entries(origin.folder)  # a damaged one is named before there are runners
        self.check_start(origin)
        return origin

    def folder_of_options(self, given: Path | None = None) -> Path | None:
        folder = super().folder_of_options(given)
        return folder or (folder_of(Path(self.resume_from)) if self.resume_from else None)

    async def clear_leftovers(self, store: "LightningStore") -> None:
        """Cancel what a killed part of the run left in the store, before runners claim it."""
        # It refuses what run() would refuse, so that nothing is cancelled for a start that fails.
        # Checksums of large files take their time; ``open`` takes the same start.
        origin = self._origin = await asyncio.to_thread(self.find_start)
        await cancel_dead_starts(store, origin.folder, origin.home)

    @contextlib.asynccontextmanager
    async def open(self, num_tasks: int) -> "AsyncGenerator[Session]":
        """Load or resume."""
        from agl_learning.collect.step_metrics import Totals
        from agl_learning.collect.task_order import TaskOrder
        from agl_learning.reports.report import Report
        from agl_learning.resume.session import Session

        gateway = self.gateway()
        origin, self._origin = self._origin or await asyncio.to_thread(self.find_start), None
        self._checkpoint = origin.checkpoint
        with Journal(origin.folder) as self._journal:
            progress = origin.progress()
            # What earlier starts in the folder did after the checkpoint is lost.
            self._branch = list(progress.branch) if origin.is_same_run else []
            if self._branch and self.journal.last("begun") is None:
                logger.warning(
                    "%s is gone, or what it said of earlier starts is: the run goes on after step "
                    "%d, and no step up to that one can be replayed",
                    self.journal.path,
                    progress.step,
                )
            self.weights_version = progress.version
            self._idle_steps, self._saved_at = progress.idle_steps, progress.step
            self._is_solved = progress.is_solved and self._idle_steps >= self.max_idle_steps
            self.load(origin.checkpoint, origin.folder)
            self._tasks = TaskOrder(num_tasks, self.seed)
            self._tasks.restore(progress.tasks)
            self._order = self._tasks.state()
            generation = begin_generation(
                origin.folder,
                branch=self._branch,
                origin=origin.other_run,
                algorithm=self.name,
                **begun_by_trainer(self, origin.folder),
            )
            await keep_branch(self.get_store(), generation.run, self._branch)
            shapes = self._run_context.what_shapes
            begin(self.journal, self, shapes, progress.step, generation)
            collector = self.collector()
            collector.model = self.trained_model()
            collector.patience_seconds *= 1 + self.max_staleness
            with Report(
                self, self.name, origin.folder, self.steps, progress.step, self.show_progress
            ) as report:
                session = Session(
                    algorithm=self.name,
                    folder=report.folder,
                    generation=generation,
                    report=report,
                    store=self.get_store(),
                    gateway=gateway,
                    collector=collector,
                    totals=Totals(progress.totals),
                    steps_done=progress.step,
                    begun_at=0 if origin.is_same_run else progress.step,
                    rewards=list(progress.rewards),
                    val_rewards=list(progress.val_rewards),
                )
                evaluated = session.is_evaluated(progress.step)
                noted = [*self.journal.all("trained"), *self.journal.all("evaluated")]
                lines = [entry["metrics"] for entry in noted]
                report.go_back(progress.step, evaluated, self._branch, lines)
                yield session

    async def step(self, train: Dataset[Any], val: Dataset[Any] | None) -> None:
        session, start = self.session, time.perf_counter()
        await self.evaluate_when_due(val)
        number, waited = session.steps_done + 1, time.perf_counter()
        collected = await self.gather(train)
        idle = {"time/idle": time.perf_counter() - waited} if self.max_staleness else {}
        key = key_of(session, self.journal, "train")  # another, where it was drawn anew
        again = self.journal.last("trained", key=key) is not None
        rows = await asyncio.to_thread(self.weigh, collected)
        update_start = time.perf_counter()
        learned, rows = await self.learn(rows, collected.ledger)
        self.check_gap(f"step {number}", learned)
        # Not before: rows of an update that failed must not be in the store as trained.
        await session.keep(collected, number, self.weights_version)
        session.steps_done = number
        session.rewards.append(collected.mean_reward)
        end = time.perf_counter()
        self._check_idle(number, collected, bool(rows))
        metrics = {
            "step": number,
            "generation": session.generation.number,
            **self.measured(collected, rows, learned),
            **idle,
            "time/update": end - update_start,
            "time/step": end - start,
        }
        await session.report.step(number, metrics, again=again)
        digests = [digest_of(one) for one in rows]
        note_trained(self.journal, number, key, self.fingerprint(), metrics, digests)
        last = number == self.steps or self.is_over()
        await self.evaluate_when_due(val, last=last)
        is_due = number % (self.checkpoint_every or number + 1) == 0
        if last or (is_due and self._idle_steps == 0):  # idle steps may be given up
            await self._save()

    def evaluated(self, key: str, collected: "Collected", metrics: Mapping[str, Any]) -> None:
        self.journal.append("evaluated", key=key, metrics=dict(metrics))

    async def keep_for_later(self) -> None:
        await super().keep_for_later()
        if self.session.steps_done > self._saved_at:
            await self._save()

    async def _save(self) -> None:
        from agl_learning.run.checkpoint import Progress, making, remove_older

        session, number = self.session, self.session.steps_done
        progress = Progress(
            step=number,
            version=self.weights_version,
            totals=dict(session.totals.counts),
            tasks=self._order,
            rewards=session.rewards,
            val_rewards=session.val_rewards,
            branch=[*self._branch, (session.generation.number, number)],
            identity=self.identity(),
            idle_steps=self._idle_steps,
            is_solved=self._is_solved,
        )
        folder = session.folder / "checkpoints" / f"step-{number:06d}"

        def write() -> None:
            with making(folder, progress) as partial:
                self.save(partial)
            if self.keep_last is not None:
                remove_older(session.folder, self.keep_last, session.val_rewards)

        await asyncio.to_thread(write)
        self._checkpoint, self._saved_at = folder, number
        await self.tell("on_checkpoint_saved", step=number, path=folder)

    def summed_up(self) -> dict[str, Any]:
        from agl_learning.run.checkpoint import best_checkpoint

        path, session = self._checkpoint, self.session
        best = best_checkpoint(session.folder, session.val_rewards)
        return {
            "steps": session.steps_done,
            "checkpoint": None if path is None else str(path),
            "best_checkpoint": None if best is None else str(best[0]),
        }

    # --- when it ends, and what is odd

    def is_over(self) -> bool:
        rewards = self.session.rewards[-TARGET_STEPS:]
        is_reached = self.target_reward is not None and all(
            reward is not None and reward >= self.target_reward for reward in rewards
        )
        is_reached = is_reached and len(rewards) == TARGET_STEPS
        return is_reached or self._is_solved or self.is_budget_spent()

    def is_solved(self, collected: "Collected") -> bool:
        """Whether equal rewards are all that kept what was collected from being trained."""
        return is_solved(collected, self)

    def is_a_draw(self, collected: "Collected") -> bool:
        """Whether rewards differ, and still nothing has an advantage; no sign of anything."""
        return is_a_draw(collected, self)

    def check_gap(self, when: str, learned: Mapping[str, float]) -> None:
        """Warn, once, where what was recorded when sampling is not the model's.

        Args:
            when: What the warning begins with.
            learned: What ``learn`` says.
        """
        if learned.get("version_lag") == 0 and not self._gap_warned:
            gap = learned.get("logprob_gap")
            self._gap_warned = warn_of_gap(when, gap, self.temperature)

    def _check_idle(self, step: int, collected: "Collected", trained: bool) -> None:
        from agl_learning.collect.step_metrics import why_nothing

        if trained:
            self._idle_steps = 0
            return
        if self.is_a_draw(collected):
            return
        self._idle_steps += 1
        has_learned = self.session.totals.counts["calls_trained"] > 0
        if has_learned and self.is_solved(collected):
            self._is_solved = self._idle_steps >= self.max_idle_steps
            if self._is_solved:
                logger.warning(
                    "no rollout has had an advantage for %d steps (mean reward %s): nothing is "
                    "left to learn from these tasks; ending early",
                    self._idle_steps,
                    collected.mean_reward,
                )
            return
        why = why_nothing(collected)
        # Few rollouts may have equal rewards by chance; without any row something is wrong.
        in_vain = not has_learned and "zero_advantage" not in collected.ledger.reasons()
        if self._idle_steps >= self.max_idle_steps or (step == self.steps and in_vain):
            give_up_since(self.journal, step - self._idle_steps)  # what failed them may be mended
            raise AlgorithmError(
                f"{self.title}: nothing could be trained in {self._idle_steps} steps in a row, up "
                f"to step {step}. The last one: {why}. When the run goes on, they are drawn anew"
            )
        logger.warning("step %d trained nothing: %s", step, why)
