"""A stored run with another reward, credit rule or adapter: a run of its own, derived from it.

The agent is not run again. Of each rollout that succeeded the derived run has the attempt that
counts, with its spans; where there is a new reward function, its reward in place of all others.
"""

import inspect
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, cast

from pydantic_core import to_jsonable_python

from agl.algorithm.adapter import TraceAdapter
from agl.emitter import find_final_reward, is_reward_span, reward_attributes
from agl.errors import AglError, ConfigError, DamagedRecordError
from agl.plugins.build import build_component, import_attribute
from agl.semconv import AGL_ANNOTATION
from agl.store.base import LightningStore
from agl.store.queries import each_record
from agl.types import GradeResult, Rollout, Span, private_of
from agl.types.records import without_private
from agl.utils.rewards import reward_problem
from agl_inspect.exchange.reading import JUDGES, ReadRollout, read_rollout
from agl_inspect.exchange.records import row_record
from agl_inspect.exchange.writers import Write
from agl_learning.collect.task_order import digest
from agl_records.ledger.ledger import load_parts
from agl_records.row_builder import RowsAdapter
from agl_runs.description import installed_versions
from agl_runs.records import Run, RunSource, RunStart
from agl_runs.store import begin_run, end_run
from agl_runs.user_code import digest_of, source_file

ALGORITHM: Final = "rederive"
Component = str | dict[str, Any]
"""A name, or ``type`` and options."""
DERIVED: Final = "derived_from"
"""Key of a rollout's metadata: the run and the rollout that it is a copy of."""


class Reward:
    """A function, as ``module:function``, that says what a rollout was worth, as it was recorded.

    It gets what it names among its parameters: ``task`` (without ``private``), ``private``,
    ``messages`` (the last call's conversation with its answer; none without a call), ``spans`` (of
    the attempt that counts), ``rollout``, and ``reward`` (the one that it had, or None). It may be
    a coroutine function, and gives a number, several by name with the primary one first, or None.

    Raises:
        ConfigError: There is no such function, or it names something else.
    """

    TAKES = ("task", "private", "messages", "spans", "rollout", "reward")

    def __init__(self, path: str) -> None:
        self.path = path
        self.function: Callable[..., Any] = import_attribute(path, "--reward")
        if not callable(self.function):
            raise ConfigError(f"--reward: {path!r} is no function")
        parameters = inspect.signature(self.function).parameters
        self._names = [name for name in parameters if name in self.TAKES]
        for name, one in parameters.items():
            is_open = one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
            if name not in self.TAKES and one.default is one.empty and not is_open:
                raise ConfigError(
                    f"--reward: {path!r} has the parameter {name!r}; a reward function may take "
                    f"{', '.join(self.TAKES)}"
                )

    @cached_property
    def digest(self) -> str | None:
        """Of its source file; None where it has none."""
        file = source_file(self.function)
        return digest_of(file) if file else None

    async def of(self, read: ReadRollout) -> dict[str, Any] | None:
        """Attributes of the reward of a rollout; None where it has none."""
        given = {
            "task": without_private(read.rollout.input),
            "private": private_of(read.rollout.input),
            "messages": read.said[-1].chat["messages"] if read.said else [],
            "spans": read.used_spans,
            "rollout": read.rollout,
            "reward": find_final_reward(read.used_spans),
        }
        result = self.function(**{name: given[name] for name in self._names})
        if inspect.isawaitable(result):
            result = await cast(Awaitable[Any], result)
        reward = cast(GradeResult, result)
        return None if reward is None else reward_attributes(reward)


@dataclass(frozen=True)
class How:
    """What is another than in the run."""

    reward: Reward | None
    """None keeps the rewards that there are."""
    credit: Component | None
    adapter: Component

    @cached_property
    def make(self) -> TraceAdapter[Any]:
        """The adapter, with the credit rule; a ``ConfigError`` if it takes none."""
        adapter = self.adapter
        options: dict[str, Any] = {"type": adapter} if isinstance(adapter, str) else dict(adapter)
        if self.credit is not None:
            options["credit"] = self.credit
        return build_component(
            options, group="agl.adapters", expected_type=TraceAdapter, where="--adapter"
        )

    def written(self) -> dict[str, Any]:
        """For the configuration of the derived run."""
        reward = self.reward
        return {
            "reward": reward and reward.path,
            "reward_source": reward and reward.digest,
            "credit": self.credit,
            "adapter": self.adapter,
        }


@dataclass
class TaskRewards:
    """The rollouts of one task."""

    task: Any
    before: list[float | None] = field(default_factory=list[float | None])
    now: list[float | None] = field(default_factory=list[float | None])
    credits_before: list[float | None] = field(default_factory=list[float | None])
    """What each call got, by the ledger."""
    credits: list[float | None] = field(default_factory=list[float | None])
    """What each call gets now, by the credit rule; of adapters that make rows."""


@dataclass
class Derivation:
    """Derives a run; see the module."""

    source: LightningStore
    run: Run
    how: How
    mode: str | None = None
    """Only rollouts of this mode."""
    tasks: dict[str, TaskRewards] = field(default_factory=dict[str, TaskRewards])
    left_out: Counter[str] = field(default_factory=Counter[str])
    """Reason -> calls, or whole rollouts, that are in no record."""
    problems: dict[str, str] = field(default_factory=dict[str, str])
    """Rollout of the source -> why the reward function gave it none."""
    num_rollouts: int = 0
    num_records: int = 0

    _rewards: dict[str, dict[str, Any] | None] = field(
        default_factory=dict[str, dict[str, Any] | None]
    )

    async def look(self) -> None:
        """Give each rollout its new reward; nothing is written yet.

        An adapter that takes no credit rule, a run without a rollout that succeeded, and a reward
        function that fails on all of them are a ``ConfigError``.
        """
        _ = self.how.make
        async for rollout in self._rollouts():
            self._rewards[rollout.rollout_id] = None
            read = await self._read(rollout)
            if read is None or self.how.reward is None:
                continue
            try:
                self._rewards[rollout.rollout_id] = await self.how.reward.of(read)
            except Exception as error:
                self.problems[rollout.rollout_id] = f"{type(error).__name__}: {error}"
        if not self._rewards:
            modes = "" if self.mode is None else f" of mode {self.mode!r}"
            raise ConfigError(f"run {self.run.run_id!r} has no rollout{modes} that succeeded")
        if len(self.problems) == len(self._rewards):
            first, why = next(iter(self.problems.items()))
            raise ConfigError(
                f"--reward: the function failed on all {len(self._rewards)} rollouts; on the "
                f"first, {first!r}: {why}"
            )

    async def write(
        self, store: LightningStore, run_id: str, folder: str, place: str, write: Write
    ) -> None:
        """Fill the empty store of the derived run, and write what the adapter makes of it.

        ``run_id`` and ``folder`` are of the derived run, too; ``place`` is where the source is.
        """
        start = RunStart(
            run_id=run_id,
            algorithm=ALGORITHM,
            seed=self.run.seed,
            config={**self.how.written(), "mode": self.mode},
            code=self.run.code.changed(versions=installed_versions()),
            folder=folder,
            datasets=self.run.datasets,
            derived_from=RunSource(run_id=self.run.run_id, store=place),
        )
        await begin_run(store, start)
        async for rollout in self._rollouts():
            read = await self._read(rollout)
            if read is None:
                self.left_out["rollout damaged"] += 1
            else:
                await self._copy(read, store, run_id, write)
        await end_run(store, run_id, 1, "finished")

    async def _rollouts(self) -> AsyncGenerator[Rollout]:
        given = {"status_in": ["succeeded"], "run": self.run.run_id, "mode": self.mode}
        async for rollout in each_record(self.source.query_rollouts, **given):
            if JUDGES not in (rollout.metadata or {}):
                yield rollout

    async def _read(self, rollout: Rollout) -> ReadRollout | None:
        try:
            return await read_rollout(self.source, rollout)
        except DamagedRecordError:
            return None

    async def _copy(
        self, read: ReadRollout, store: LightningStore, run_id: str, write: Write
    ) -> None:
        old, rewards = read.rollout, self.how.reward
        reward = self._rewards.get(old.rollout_id)
        problem = self.problems.get(old.rollout_id)
        metadata = {
            **(old.metadata or {}),
            "run": run_id,
            "generation": 1,
            DERIVED: {"run": self.run.run_id, "rollout_id": old.rollout_id},
            **({} if problem is None else {"reward_problem": problem}),
        }
        new = await store.start_rollout(old.input, mode=old.mode, metadata=metadata)
        owner = {"rollout_id": new.rollout_id, "attempt_id": new.attempt.attempt_id}
        spans = [
            span.model_copy(update=owner)
            for span in read.used_spans
            if rewards is None or not (is_reward_span(span) or reward_problem(span))
        ]
        await store.add_many_spans(spans)
        if reward is not None:
            now = time.time()
            span = Span.from_attributes(
                name=AGL_ANNOTATION, attributes=reward, start_time=now, end_time=now
            )
            await store.add_span(span.model_copy(update={**owner, "writer": "algorithm"}))
        await store.update_attempt(new.rollout_id, new.attempt.attempt_id, status="succeeded")
        key = f"{old.mode} {digest([old.input])}"
        task = self.tasks.setdefault(key, TaskRewards(without_private(old.input)))
        kept = list(await store.query_spans(new.rollout_id))
        task.before.append(find_final_reward(read.used_spans))
        task.now.append(find_final_reward(kept))
        for part in await load_parts(self.source, [old]):
            both = (*part.trained, *part.excluded)
            task.credits_before += [one.credit.reward for one in both if one.credit is not None]
        self.num_rollouts += 1
        for record in self._records(kept, await store.query_attempts(new.rollout_id), task):
            write(record)
            self.num_records += 1

    def _records(
        self, spans: Sequence[Span], attempts: Sequence[Any], task: TaskRewards
    ) -> list[dict[str, Any]]:
        adapter = self.how.make
        try:
            if not isinstance(adapter, RowsAdapter):
                made: Any = adapter.adapt(spans)
                listed = to_jsonable_python(made if isinstance(made, list) else [made])
                return [one if isinstance(one, dict) else {"value": one} for one in listed]
            rows = adapter.adapt(spans, attempts=list(attempts))
        except ConfigError:
            raise
        except AglError as error:
            self.left_out[f"rollout refused by the adapter: {error}"] += 1
            return []
        self.left_out.update(rows.ledger.reasons())
        task.credits += [credit.reward for row in rows.rows for credit in row.credits]
        return [row_record(row) for row in rows.rows]
