"""The loop of fine-tuning on an agent's own rollouts, whoever serves and trains the model.

Per iteration: serve the newest version of the model, publish it through the gateway, run the
tasks, choose what to learn from, train, and the next version is there. A subclass says how a
version is served and trained. What is finished stands in ``journal.jsonl``; a run that is killed
and started again with the same ``run_dir`` goes on behind it:

- a collection that had begun goes on (rollouts have durable keys; those that were cut off run
  again) with the tasks and copies that it had; one that had ended is not repeated: its examples
  lie in ``iterations/NNNN/examples.jsonl``
- a training that had not ended is begun again, from the version before
- an evaluation that had ended is not repeated
- the ledger of an iteration is kept in the store when its training has ended; until then it lies in
  ``iterations/NNNN/ledger.jsonl``

Metrics, one JSON object per line of ``metrics.jsonl``: per iteration ``step``, ``version``,
``examples``, those of ``collect.step_metrics``, ``train/...`` of the training, ``time/train`` and
``time/step`` in seconds. Evaluations have ``step`` and ``val/...``.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agl.errors import AlgorithmError, ConfigError
from agl.types import Dataset
from agl_learning.reports.json_lines import write_lines
from agl_learning.resume.collection_journal import begin, find_request, give_up, key_of
from agl_learning.run.generations import (
    Generation,
    begin_generation,
    begun_by_trainer,
    cancel_dead_starts,
    check_algorithm,
    mark_lost,
    read_generation,
)
from agl_learning.run.journal import Journal, mend_generation, read_entries
from agl_learning.run.start import run_folder
from agl_learning.trainer.version_steps import (
    OF_TRAINING,
    VersionTraining,
    place,
    standing,
    version_of,
)
from agl_models.versions import Version
from agl_records.ledger.documents import put_parts
from agl_records.ledger.ledger import ledger_parts
from agl_records.options import Count
from agl_records.types import LedgerPart

if TYPE_CHECKING:
    from agl.store.base import LightningStore
    from agl_learning.collect.results import Collected
    from agl_learning.resume.session import Session

logger = logging.getLogger("agl.learning")

LEDGER = "ledger.jsonl"


@dataclass(kw_only=True, eq=False, repr=False)
class FineTuning(VersionTraining):
    """Serve, roll out, choose, train, again; the base of ``SFT``, ``DPO`` and remote trainers.

    A subclass gives ``prepare``, ``serve``, ``select`` and ``train``, and where it holds something
    ``clean_up``. All of them may use ``self.session`` and ``self.journal``.

    Args:
        iterations: How often; a run that has had fewer can be continued with more.
        tasks_per_iteration: None takes all.
        rollouts_per_task: How often each of them runs in an iteration.
        eval_every: Evaluate every so manieth version; in any case the first and the last.
        run_dir: Folder for what the training writes; where it holds an earlier part of the run,
            that is continued. None takes that of the run (``run_dir`` of the file or the trainer),
            and where it has none a new one under ``agl-runs``.
    """

    safe_options = frozenset({"eval_every"})
    growing_options = frozenset({"iterations"})

    iterations: Count = 2
    tasks_per_iteration: Count | None = None
    rollouts_per_task: Count = 4
    eval_every: Count = 1  # pyright: ignore[reportIncompatibleVariableOverride]

    # --- the loop's questions

    @property
    def num_steps(self) -> int:
        return self.iterations

    @property
    def version(self) -> Version:
        return self._version

    async def clear_leftovers(self, store: "LightningStore") -> None:
        """Cancel what a killed part of the run left in the store, before runners claim it."""
        folder = self.folder_of_options() or self.get_run_folder()
        if folder is None:
            return
        mend_generation(folder)
        # What ``open`` would refuse is named before there are runners.
        check_algorithm(folder, self.name)
        begun = [entry for entry in read_entries(folder) if entry["event"] == "begun"]
        if begun:
            self.check_identity(folder, begun[-1]["identity"])
        await cancel_dead_starts(store, folder)

    @contextlib.asynccontextmanager
    async def open(self, num_tasks: int) -> "AsyncGenerator[Session]":
        """A new run, or the one in the folder, as far as it is."""
        from agl_learning.collect.step_metrics import Totals
        from agl_learning.reports.report import Report
        from agl_learning.resume.session import Session

        gateway, folder = self.gateway(), run_folder(self, self.run_dir)
        mend_generation(folder)
        with contextlib.ExitStack() as stack:
            journal = self._journal = stack.enter_context(Journal(folder))
            begun = begun_by_trainer(self, folder)
            run_id, before = self._find_run(journal, begun.get("run")), read_generation(folder)
            number = begun.get("number") or (before.number + 1 if before else 1)
            done = sum(entry["event"] == "trained" for entry in standing(journal))
            report = Report(self, self.name, folder, self.iterations, done, self.show_progress)
            self._session = session = Session(
                algorithm=self.name,
                folder=folder,
                generation=Generation(run_id, number, algorithm=self.name),
                report=stack.enter_context(report),
                store=self.get_store(),
                gateway=gateway,
                collector=self.collector(),
                totals=Totals(),
                steps_done=0,
            )
            try:
                self._version = await self.prepare()
                session.collector.model = self.trained_model()
                await self._begin(session)
                yield session
            finally:
                await self.clean_up()

    async def _begin(self, session: "Session") -> None:
        """Bind the folder to this run, now that everything was found to be right."""
        await self._find_newest(session.folder)
        done = session.steps_done = self._version.number
        begin(
            *(self.journal, self, self._run_context.what_shapes, done, session.generation),
            identity=self.identity(),
        )
        number = session.generation.number
        begin_generation(session.folder, session.run_id, algorithm=self.name, number=number)
        stands = [entry for entry in standing(self.journal) if place(entry) <= done]
        counts = [entry for entry in stands if "counts" in entry]
        for entry in counts:
            session.totals.counts.update(entry["counts"])
        session.rewards = [one["reward"] for one in stands if one["event"] == "selected"]
        evaluated = [entry for entry in stands if entry["event"] == "evaluated"]
        session.val_rewards = [(entry["version"], entry["reward"]) for entry in evaluated]
        # What a kill had written of a step, or of an evaluation, that counts as not done.
        known = {rollout_id for entry in counts for rollout_id in self._rollouts(entry["key"])}
        await mark_lost(session.store, session.run_id, lambda part: part.rollout_id not in known)
        lines = (entry["metrics"] for entry in stands if entry["event"] in ("trained", "evaluated"))
        session.report.rewrite(lines)

    def _rollouts(self, key: str) -> list[str]:
        """Ids of what was collected under a key."""
        done = self.journal.last("collected", key=key)
        return [] if done is None else [one for _, one in done["rollouts"]] + done["lost"]

    async def _find_newest(self, folder: Path) -> None:
        """Take the newest version that is whole; what was made of a damaged one stands no more."""
        trained = [entry for entry in standing(self.journal) if entry["event"] == "trained"]
        for entry in reversed(trained):
            made = version_of(entry)
            if await asyncio.to_thread(self.is_whole, made):
                self._version = made
                logger.info("%s goes on after version %d", folder, made.number)
                break
            logger.warning(
                "version %d in %s is damaged and is left out: it is trained once more, from the "
                "one before it",
                made.number,
                made.ref,
            )
        if trained and version_of(trained[-1]) != self._version:
            self.journal.append("went back", version=self._version.number)

    def _find_run(self, journal: Journal, new_id: str | None) -> str:
        """The id of the run to continue, or a new one: that of the trainer, if it has one."""
        begun = journal.last("begun")
        folder = journal.path.parent
        check_algorithm(folder, self.name)
        if begun is None:
            # A run of ours has written its journal before either of these.
            if read_generation(folder) is not None or (folder / "metrics.jsonl").exists():
                raise ConfigError(
                    f"{self.title}: {str(folder)!r} holds a run of another algorithm, and no "
                    "journal of fine-tuning. Give another run_dir"
                )
            return new_id or secrets.token_hex(6)
        self.check_identity(folder, begun["identity"])
        return begun["start"]["run"]

    async def step(self, train: Dataset[Any], val: Dataset[Any] | None) -> None:
        session, number = self.session, self.session.steps_done + 1
        start = time.perf_counter()
        selected = (one for one in standing(self.journal) if one["event"] == "selected")
        entry = next((one for one in selected if one["iteration"] == number), None)
        if entry is None:
            # Before anything is served: tasks of a run that was cut off may be others by now.
            tasks, copies = self._chosen(train, number), self.rollouts_per_task
            request = find_request(session, self.journal, "train", tasks, copies)
            await self.evaluate_when_due(val)
            entry = await self._select(await self.run_request(request))
        session.rewards.append(entry["reward"])
        await self.end_serving()
        trained_at = time.perf_counter()
        logger.info("iteration %d: training on %d examples", number, entry["examples"])
        self._version = made = await self.train(
            session.folder / entry["file"], self._version, number
        )
        await self._keep_trained()
        session.totals.counts.update(entry["counts"])
        session.steps_done = number
        end = time.perf_counter()
        await self.tell("on_checkpoint_saved", step=number, path=made.ref)
        line = {
            "step": number,
            "generation": session.generation.number,
            "version": number,
            "examples": entry["examples"],
            **entry["metrics"],
            **{OF_TRAINING + name: value for name, value in made.metrics.items()},
            "time/train": end - trained_at,
            "time/step": end - start,
        }
        key = entry["key"]
        again = self.journal.last("trained", key=key) is not None
        await session.report.step(number, line, again=again)
        # Last: what a kill keeps from being in the journal is done again, and changes nothing.
        self.journal.append("trained", version=number, ref=made.ref, key=key, metrics=line)

    def summed_up(self) -> dict[str, Any]:
        return {"iterations": self._version.number, "model": self._version.ref}

    def _chosen(self, dataset: Dataset[Any], number: int) -> list[Any]:
        """The tasks of an iteration."""
        from agl_learning.collect.task_order import TaskOrder

        chosen: list[int] = []
        count = self.tasks_per_iteration or len(dataset)
        order = TaskOrder(len(dataset), self.seed)
        for _ in range(number):
            chosen = order.take(count)
        return [dataset[index] for index in chosen]

    async def _select(self, collected: "Collected") -> dict[str, Any]:
        """The entry of what is trained."""
        from agl_learning.collect.step_metrics import Totals, collected_metrics

        session, number = self.session, self.session.steps_done + 1
        key = key_of(session, self.journal, "train")
        try:
            examples = self.select(collected, number)
        except AlgorithmError:
            # Started again, the iteration shall draw new rollouts: these are accounted for.
            await session.keep(collected, number, self._version.number)
            counts = dict(Totals.of(collected).counts)
            give_up(self.journal, "train", number - 1, key=key, counts=counts)
            raise
        parts = ledger_parts(
            collected.ledger,
            collected.rollouts,
            step=number,
            algorithm=self.name,
            run=session.run_id,
            generation=session.generation.number,
        )
        file = Path("iterations") / f"{number:04d}" / "examples.jsonl"
        write_lines(session.folder / file, examples)
        write_lines(
            (session.folder / file).with_name(LEDGER),
            [part.model_dump(mode="json", exclude_defaults=True) for part in parts],
        )
        return self.journal.append(
            "selected",
            iteration=number,
            key=key,
            file=str(file),
            examples=len(examples),
            reward=collected.mean_reward,
            metrics=collected_metrics(collected, self.trained_model()),
            counts=dict(Totals.of(collected).counts),
        )

    async def _keep_trained(self) -> None:
        """Keep the ledger of the iteration that made a version; again, it changes nothing."""
        number = self._version.number
        path = self.session.folder / "iterations" / f"{number:04d}" / LEDGER
        made = {"version": str(number)}
        await put_parts(
            self.get_store(),
            [
                LedgerPart.model_validate_json(line).model_copy(update=made)
                for line in path.read_text("utf-8").splitlines()
            ],
        )

    def evaluated(self, key: str, collected: "Collected", metrics: Mapping[str, Any]) -> None:
        from agl_learning.collect.step_metrics import Totals

        self.journal.append(
            "evaluated",
            version=self._version.number,
            key=key,
            reward=collected.mean_reward,
            metrics=dict(metrics),
            counts=dict(Totals.of(collected).counts),
        )
