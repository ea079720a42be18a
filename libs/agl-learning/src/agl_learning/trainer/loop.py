"""The training loop: serve the model, roll out, learn, save, again.

A run that is killed goes on from its newest whole checkpoint. What came after is done again with
the rollouts that it had; only what was under way runs once more.
"""

import asyncio
import logging
import time
from dataclasses import asdict
from functools import partial
from typing import Any

from agl.errors import StoppedError
from agl.types import Dataset
from agl_learning.collect.collector import AS_ASKED
from agl_learning.collect.step_metrics import collected_metrics
from agl_learning.collect.task_order import Tasks
from agl_learning.run.checkpoint import Progress, making, name_of, note_again, remove_older
from agl_learning.trainer.base import Training
from agl_learning.trainer.opening import open_run
from agl_learning.trainer.runners import RunnersOfRun
from agl_learning.trainer.session import Session

OTHERWISE = "another machine, version or number of threads computes otherwise"

logger = logging.getLogger("agl.learning")


async def run(
    self: Training,
    train_dataset: Dataset[Any] | None = None,
    val_dataset: Dataset[Any] | None = None,
) -> None:
    """Do all steps that the run has not had yet: ``run`` of those that use this loop.

    Raises:
        ConfigError: No tasks, no gateway, or a folder, model or machine that will not do.
        AlgorithmError: Nothing could be trained; the message says why.
        LedgerError: A model call stands in no bin or in several.
        StoppedError: It was asked to stop.
    """
    self.check_datasets(train_dataset, val_dataset)
    assert train_dataset is not None, f"check_datasets of {self.title} lets no tasks pass"
    for name, every in self.intervals().items():
        if every is not None and every > self.num_steps:  # a file is tried with fewer steps
            logger.warning(
                "%s: %s.every is %d, and the run has %d steps: it does nothing, beside what is "
                "done at the end in any case",
                *(self.title, name, every, self.num_steps),
            )
    begun = time.perf_counter()
    self.asked_to_stop = asyncio.Event()
    origin = self.origin or await asyncio.to_thread(self.find_start)
    self.origin = None
    async with open_run(self, origin) as session:
        tasks = Tasks(train_dataset, self.seed, self.task_order)
        loop = self.running = Loop(self, session, tasks, val_dataset)
        try:
            stopped = await loop.run()
            ended = self.why_over() if session.steps_done < self.num_steps else ""
            if ended and not session.requests.ends:  # which was told when it was asked for
                logger.warning("%s: ending after step %d", ended, session.steps_done)
            self.summary = {
                **self.summed_up(),
                "seconds": time.perf_counter() - begun,
                "rewards": session.rewards,
                "val_rewards": session.val_rewards,
                "ended": ended or session.requests.ends or None,
                **session.report.of_run(),
                **session.totals.summary(),
                "run_dir": str(session.folder),
            }
            session.report.summary(self.summary, session.generation.number)
        finally:
            self.running = None
            await loop.end()
    if stopped is not None:
        raise stopped


class Loop:
    """The steps of one start of a run; without tasks in ``val`` it evaluates nothing."""

    def __init__(
        self, training: Training, session: Session, tasks: Tasks, val: Dataset[Any] | None
    ) -> None:
        self._training, self._session = training, session
        self._val = [] if val is None else [val[index] for index in range(len(val))]
        self._has_warned = False
        self._event_loop = asyncio.get_running_loop()
        self._runners = RunnersOfRun(training, session)
        self._source = training.find_source(self._runners, tasks, session.taken)
        self._tell_again = partial(session.requests.tell_again, algorithm=training)

    async def run(self) -> StoppedError | None:
        """Do all steps; what it was stopped by before it had them, if it was."""
        training, session = self._training, self._session
        if getattr(training, "learning_rate", None) == 0:
            session.report.say_unchanging("learning_rate")
        saved_at = session.steps_done
        try:
            while not training.is_over():
                if training.asked_to_stop.is_set():
                    raise StoppedError(AS_ASKED)
                await self._evaluate_when_due()
                if session.requests.ends:  # by what it came to: no further version is made, or paid
                    break
                if await self._step():
                    saved_at = session.steps_done
            await self._leave()
        except StoppedError as error:
            await self._source.wait()
            if is_spent := training.is_budget_spent():  # of which the trainer speaks
                await training.check_end()
            if session.steps_done > saved_at:
                await self._save()
            if not is_spent:
                return StoppedError(f"{error}, after step {session.steps_done}")
        return None

    async def end(self) -> None:
        """Let go of the rollouts that are under way, and of what is served."""
        await self._source.stop()
        await self.end_serving()

    async def end_serving(self) -> None:
        await self._runners.serving.end()

    def ask_to_stop(self) -> bool:
        """End when the rollouts or the training under way have; what is done is kept."""
        self._event_loop.call_soon_threadsafe(self._stop_soon)
        return True

    def _stop_soon(self) -> None:
        logger.warning(
            "asked to stop: what is under way ends first. Asked once more, it ends at once; either "
            "way the run can be continued"
        )
        self._training.asked_to_stop.set()

    async def _step(self) -> bool:
        """Do the next step; whether a checkpoint was saved after it."""
        training, session, start = self._training, self._session, time.perf_counter()
        after, sampled = session.steps_done, training.sampling_seconds()
        number = after + 1
        collected = await self._source.next(after)
        idle = time.perf_counter() - start
        learned = await training.learn(collected, number)
        # Not before: rows of an update that failed must not be in the store as trained.
        await session.keep(collected, number, training.version.number)
        session.steps_done = number
        session.rewards.append(collected.mean_reward)
        end, sampled = time.perf_counter(), training.sampling_seconds() - sampled
        await training.after_step(number, collected, learned.trained)
        metrics = {
            "step": number,
            "generation": session.generation.number,
            **learned.metrics,
            **({"time/idle": idle} if self._source.runs_ahead else {}),
            **({"time/sampling": sampled} if sampled else {}),
            "time/step": end - start,
        }
        done, weights = session.records.find_done("train", after), training.digest()
        await session.report.step(number, metrics, self._tell_again if done else None)
        if done is not None and done.weights != weights:
            start = (done.metrics or {}).get("generation", session.generation.number)
            why = "; ".join(training.changed_options(session.folder, start))
            logger.warning(
                "step %d, trained again with the same rollouts, gave other weights (%s) than in an "
                "earlier start of the run (%s): %s",
                *(number, weights, done.weights, why or OTHERWISE),
            )
        await session.records.done("train", after, metrics, weights=weights, rows=learned.rows)
        if not training.makes_versions:
            if not training.is_over():
                await self._evaluate_when_due()
            if training.is_over():  # by what the evaluation came to, perhaps
                await self._leave()
        last, asked = training.is_over(), session.requests.saves
        if is_saved := training.saves_after(number, last, asked):
            await self._save()
        return is_saved

    async def _leave(self) -> None:
        """No step comes any more: account for rollouts of such, and evaluate.

        If such steps come after all, they are drawn anew.
        """
        training, session = self._training, self._session
        await training.check_end()
        if not training.is_budget_spent() and (left := await self._source.stop()):
            for after, tasks in left:
                one = await self._runners.ask(after, tasks, at_once=True)
                for row in (row for ended in one.ended for row in ended.rows):
                    one.ledger.exclude_row(row, "unused_group", "the run ended before its step")
                await session.keep(one, session.steps_done, training.version.number)
            await session.records.redraw("train", session.steps_done)
        await self._evaluate_when_due(last=True)

    async def _save(self) -> None:
        """Save what the next start goes on from."""
        training, session = self._training, self._session
        number = session.steps_done
        progress = Progress(
            step=number,
            version=training.version.number,
            totals=dict(session.totals.counts),
            taken=self._source.taken,
            rewards=session.rewards,
            val_rewards=session.val_rewards,
            start=asdict(session.generation),
            **training.progress(),
            **session.requests.progress(),
        )
        folder = session.folder / "checkpoints" / name_of(number)

        def write() -> None:
            session.report.sync()
            with making(folder, progress) as partial:
                training.save(partial)
            if training.num_kept is not None:
                remove_older(session.folder, training.num_kept, session.val_rewards)

        await asyncio.to_thread(write)
        session.checkpoint, session.requests.saves = folder, False
        path: Any = training.version.ref or folder
        asked = session.requests.progress()
        await training.tell("on_checkpoint_saved", step=number, path=path)
        # A hook may have asked for the end: it stays ended, and the hook has its state of now.
        if (asked_since := session.requests.progress()) != asked:
            await asyncio.to_thread(note_again, folder, asked_since)

    # --- evaluating

    async def _evaluate_when_due(self, *, last: bool = False) -> None:
        """Evaluate the newest version, if it was not yet and it is its turn or the last."""
        training, session = self._training, self._session
        step, every = session.steps_done, training.evaluation.every
        is_due = step == session.begun_at or step % (every or step + 1) == 0
        is_due = is_due or last or session.requests.evaluates
        is_answered = session.records.find("val", step) is not None
        is_done = session.is_evaluated(step) or (not is_answered and training.is_budget_spent())
        if session.requests.evaluates and not self._val and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "a hook asked for an evaluation (ask_to_evaluate), and there are no validation "
                "tasks, so there is none. Give some: val in a file, val_dataset in Python"
            )
        if not is_due or not self._val or is_done:
            return
        gather = partial(self._runners.ask, step, self._val, mode="val")
        collected = await self._runners.collect(step, gather, lambda _: self._val, "val")
        for row in (row for one in collected.ended for row in one.rows):
            collected.ledger.exclude_row(row, "not_trained_mode", "its rollout is a validation")
        await session.keep(collected, step, training.version.number)
        if collected.mean_reward is None:
            logger.warning(
                "there is no held-out reward after step %d: no rollout of its evaluation "
                "succeeded (%s)",
                step,
                ", ".join(f"{kind}: {count}" for kind, count in collected.failures().items()),
            )
        session.requests.evaluates = False
        session.val_rewards.append((step, collected.mean_reward))
        measured = {
            **collected_metrics(collected),
            **collected.over_copies(training.evaluation.copies),
        }
        metrics = {f"val/{name}": value for name, value in measured.items()}
        line = {"step": step, "generation": session.generation.number, **metrics}
        again = session.records.find_done("val", step) is not None
        await session.report.evaluation(step, line, self._tell_again if again else None)
        await session.records.done("val", step, line)
