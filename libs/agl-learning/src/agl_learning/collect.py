"""Runs tasks through the store and reads back what came of them: rewards, rows, ledger."""

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast, get_args

from agl.algorithm.infrastructure import (
    InfrastructureFailures,
    infrastructure_failure,
)
from agl.algorithm.mixing import MixingCheck, Ran, ran
from agl.emitter import find_final_rewards, graded_only, reward_problem
from agl.errors import ConfigError, DamagedRecordError, InvalidTransitionError
from agl.types import (
    Attempt,
    EnqueueRolloutRequest,
    Exclusion,
    ExclusionReason,
    Ledger,
    Rollout,
    RolloutConfig,
    RolloutMode,
    Span,
    TrainedModel,
    TrainingRow,
)
from agl.utils.checks import check_choice
from agl_learning.seeds import placed

if TYPE_CHECKING:
    from agl.algorithm.adapter import TraceAdapter
    from agl.algorithm.gateway import Gateway
    from agl.store.base import LightningStore

logger = logging.getLogger("agl.learning")

PATIENCE_SECONDS = 60.0
"""After so long without the end of a rollout, say so."""


class _Rows(Protocol):
    """What the adapter ``rows`` gives."""

    rows: list[TrainingRow]
    ledger: Ledger


@dataclass
class Ended:
    """A rollout that has ended, and what was read from its spans."""

    rollout: Rollout
    group: int
    """Position of its task in the request."""
    reward: float | None
    """The final one of its last successful attempt; None for a failed rollout, and for one whose
    reward says nothing because a model call failed by infrastructure."""
    rows: list[TrainingRow] = field(default_factory=list[TrainingRow])
    problem: str | None = None
    """Why it has no reward, where one was given that cannot be read."""
    is_late: bool = False
    """Whether it was cancelled because it had not ended in time."""
    infrastructure: str | None = None
    """Why, in the attempt that counts, servers or the network failed a model call."""
    unusable: tuple[ExclusionReason, str] | None = None
    """Why its rows may not be trained, although it succeeded."""
    rewards: dict[str, float] = field(default_factory=dict[str, float])
    """The dimensions of ``reward``; none where it is None."""
    ran: Ran | None = None
    """Where and when it succeeded, and with which calls."""


@dataclass
class Collected:
    """The rollouts of one step or evaluation."""

    ended: list[Ended]
    ledger: Ledger
    """Open: what becomes of ``rows`` is for the caller to say."""
    seconds: float

    @property
    def rewards(self) -> list[float]:
        """Of the rollouts that have one."""
        return [one.reward for one in self.ended if one.reward is not None]

    @property
    def mean_reward(self) -> float | None:
        """Over the rollouts that have one; a failed rollout is no zero."""
        return sum(self.rewards) / len(self.rewards) if self.rewards else None

    @property
    def num_failed(self) -> int:
        """Rollouts that did not succeed."""
        return sum(one.rollout.status != "succeeded" for one in self.ended)

    @property
    def num_infrastructure(self) -> int:
        """Rollouts that succeeded although servers or the network failed a model call of theirs."""
        return sum(one.infrastructure is not None for one in self.ended)

    def failures(self) -> dict[str, int]:
        """How often each kind of failure ended a rollout, most frequent first."""
        kinds: dict[str, int] = {}
        for one in self.ended:
            error = getattr(getattr(one.rollout, "attempt", None), "error", None)
            if one.rollout.status != "succeeded":
                kind = f"{error.boundary}: {error.type}" if error else one.rollout.status
                kinds[kind] = kinds.get(kind, 0) + 1
        return dict(sorted(kinds.items(), key=lambda item: -item[1]))


class Collector:
    """Brings tasks to the runners and their experience back.

    Args:
        store: Where both meet.
        gateway: Flushed before spans are read; None where an algorithm has none.
        adapter: Gives an object with ``rows`` and ``ledger``, and takes ``attempts=`` beside the
            spans, as the adapter ``rows`` does; and ``model=``, or it is asked for rows of all
            models, and a warning says so. None where only rewards are wanted: there are no rows,
            and the ledger stays empty.
        config: Limits and retries of each rollout.
        patience_seconds: After so long without the end of a rollout it says so. More, where many
            requests wait for the same runners.
        infrastructure_failures: What becomes of a rollout that succeeded although servers or the
            network failed a model call of it.
        model: The one that is trained; None takes the calls of all. May be set later.
        seed: Of the run; None leaves rollouts without seeds.

    Raises:
        ConfigError: That is none of the policies.
    """

    def __init__(
        self,
        store: "LightningStore",
        gateway: "Gateway | None",
        adapter: "TraceAdapter[Any] | None",
        config: RolloutConfig,
        patience_seconds: float = PATIENCE_SECONDS,
        infrastructure_failures: InfrastructureFailures = "exclude",
        model: TrainedModel | None = None,
        seed: int | None = None,
    ) -> None:
        known = get_args(InfrastructureFailures)
        check_choice("Collector", known, infrastructure_failures=infrastructure_failures)
        self.model, self._seed = model, seed
        self._store = store
        self._gateway = gateway
        self._adapter = adapter
        self._config = config
        self._patience_seconds = patience_seconds
        self._infrastructure_failures: InfrastructureFailures = infrastructure_failures
        self._mixing = MixingCheck()
        self._knows_models = adapter is not None and _takes(adapter.adapt, "model")

    async def collect(
        self,
        tasks: Sequence[Any],
        copies: int,
        mode: RolloutMode,
        resources_id: str,
        metadata: dict[str, Any],
        key: str | None = None,
        look_for_mixed: bool = True,
    ) -> Collected:
        """Run each task ``copies`` times and wait for all of them.

        Cancelled, or when the store fails, it cancels what has not ended. It may be called several
        times at once.

        Args:
            tasks: Inputs of the rollouts.
            copies: How often each of them runs.
            mode: Of the rollouts.
            resources_id: What they work with.
            metadata: Of every rollout; ``group``, the position of its task, and ``seed`` come to
                it. The seed is of ``mode``, ``step``, ``round``, group and copy.
            key: A unique name of this request. Asked for again under it, after a kill for example,
                rollouts that are in the store are not run a second time.
            look_for_mixed: Whether mixed calls are an error; they need not be where the rollouts
                are only accounted for.

        Raises:
            ConfigError: The adapter does not give training rows.
            MixedCallsError: Calls of rollouts that ran side by side were recorded in each other.
                Of several requests at once, the one that ends last says so of all.
        """
        start = time.perf_counter()
        if self.model is not None and not self._knows_models:
            logger.warning(
                "the adapter %s does not take model=, and so cannot tell calls of %r from those "
                "of other models and judges; all of them may be trained",
                type(self._adapter).__name__,
                self.model.name,
            )
            self.model = None  # said once
        requests = [
            EnqueueRolloutRequest(
                input=task,
                mode=mode,
                resources_id=resources_id,
                config=self._config,
                metadata=placed(metadata, group, copy, mode, self._seed),
                key=None if key is None else f"{key}/{group}/{copy}",
            )
            for group, task in enumerate(tasks)
            for copy in range(copies)
        ]
        ledger = Ledger()
        with self._mixing.request():
            ended = await self._run(requests, None, ledger, True)
        if self._infrastructure_failures == "drop_group":
            drop_groups(ended)
        if look_for_mixed:
            await self.look_for_mixed(ended)
        return Collected(ended, ledger, time.perf_counter() - start)

    async def run(
        self, requests: Sequence[EnqueueRolloutRequest], timeout_seconds: float | None = None
    ) -> list[Ended]:
        """Run requests that may differ in everything, and wait for all of them.

        Cancelled, it leaves them in the store: who asks again under the same keys goes on there.
        It does not look for mixed calls.

        Args:
            requests: Their position is the ``group`` of what comes back.
            timeout_seconds: What has not ended after so long is cancelled.

        Returns:
            As many as there are requests, in their order.
        """
        with self._mixing.request():
            return await self._run(requests, timeout_seconds, Ledger(), False)

    async def look_for_mixed(self, ended: Sequence[Ended]) -> None:
        """Refuse rollouts that ran side by side and were recorded in each other.

        Raises:
            MixedCallsError: Of several requests at once, the one that ends last says so of all.
        """
        await self._mixing.look(one.ran for one in ended)

    async def _run(
        self,
        requests: Sequence[EnqueueRolloutRequest],
        timeout_seconds: float | None,
        ledger: Ledger,
        cancels: bool,
    ) -> list[Ended]:
        rollouts = await self._store.enqueue_many_rollouts(requests)
        rollout_ids = [rollout.rollout_id for rollout in rollouts]
        try:
            ended, late = await self._wait(rollout_ids, timeout_seconds)
        except BaseException:
            if cancels:
                await self._cancel(rollout_ids)
            raise
        if self._gateway is not None:
            await self._gateway.flush()
        read = await asyncio.gather(
            *(
                self._read(ended[rollout_id], (request.metadata or {}).get("group", number), ledger)
                for number, (rollout_id, request) in enumerate(
                    zip(rollout_ids, requests, strict=True)
                )
            )
        )
        for one in read:
            one.is_late = one.rollout.rollout_id in late
        return read

    async def _wait(
        self, rollout_ids: list[str], timeout_seconds: float | None
    ) -> tuple[dict[str, Rollout], set[str]]:
        """All of them as they ended, and the ids of those that were cancelled for it."""
        done, late = -1, set[str]()
        until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            patience = self._patience_seconds
            if until is not None:
                patience = max(0.0, min(patience, until - time.monotonic()))
            ended = await self._store.wait_for_rollouts(rollout_ids=rollout_ids, timeout=patience)
            if len(ended) == len(rollout_ids):
                return {rollout.rollout_id: rollout for rollout in ended}, late
            if until is not None and time.monotonic() >= until:
                late |= await self._cancel(rollout_ids)
            elif len(ended) == done:
                logger.warning(
                    "%d of %d rollouts have not ended, and none did in the last %.0f seconds. "
                    "Are runners connected, and do rollouts have a time limit?",
                    len(rollout_ids) - done,
                    len(rollout_ids),
                    self._patience_seconds,
                )
            done = len(ended)

    async def _cancel(self, rollout_ids: list[str]) -> set[str]:
        ended = await self._store.wait_for_rollouts(rollout_ids=rollout_ids, timeout=0)
        late = set(rollout_ids) - {rollout.rollout_id for rollout in ended}
        for rollout_id in late:
            with contextlib.suppress(InvalidTransitionError):  # it has ended meanwhile
                await self._store.update_rollout(rollout_id, status="cancelled")
        return late

    async def _read(self, rollout: Rollout, group: int, ledger: Ledger) -> Ended:
        one = Ended(rollout, group, None)
        try:
            spans = await self._store.query_spans(rollout.rollout_id)
        except DamagedRecordError as error:
            one.problem, one.unusable = str(error), ("malformed", str(error))
            _exclude(rollout, *one.unusable, ledger)
            return one
        attempts = await self._store.query_attempts(rollout.rollout_id)
        if self._adapter is not None:
            self._read_rows(one, self._adapter, spans, attempts, ledger)
        if rollout.status == "succeeded":
            used = [a.attempt_id for a in attempts if a.status == "succeeded"][-1:]
            spans_used = [span for span in spans if span.attempt_id in used]
            for attempt in attempts:
                if attempt.attempt_id in used:
                    one.ran = ran(rollout.rollout_id, rollout.input, attempt, spans_used)
            one.infrastructure = infrastructure_failure(spans_used)
            if one.infrastructure is None or self._infrastructure_failures == "keep":
                rewards = find_final_rewards(spans_used)
                one.rewards = {reward.name: reward.value for reward in rewards}
                if rewards:
                    one.reward = rewards[0].value
                else:
                    one.problem = next(
                        filter(None, map(reward_problem, reversed(graded_only(spans_used)))), None
                    )
            else:
                why = f"a model call of its rollout failed: {one.infrastructure}"
                one.unusable = ("infrastructure", why)
        return one

    def _read_rows(
        self,
        one: Ended,
        adapter: "TraceAdapter[Any]",
        spans: Sequence[Span],
        attempts: Sequence[Attempt],
        ledger: Ledger,
    ) -> None:
        adapt: Callable[..., Any] = adapter.adapt
        about: dict[str, Any] = {} if self.model is None else {"model": self.model}
        rollout = one.rollout
        try:
            adapted = adapt(list(spans), attempts=list(attempts), **about)
        except ConfigError:
            raise
        except Exception as error:
            # Anybody may write spans, and what one agent wrote must not end the training of all.
            why = f"its spans cannot be read: {type(error).__name__}: {error}"
            logger.warning("rollout %r: %s", rollout.rollout_id, why, exc_info=error)
            one.unusable = ("malformed", why)
            _exclude(rollout, *one.unusable, ledger)
            return
        if not hasattr(adapted, "rows") or not hasattr(adapted, "ledger"):
            raise ConfigError(
                f"the algorithm learns from training rows; the adapter {type(adapter).__name__} "
                f"gave {type(adapted).__name__}. Use the adapter 'rows', or leave the adapter out"
            )
        read = cast(_Rows, adapted)
        one.rows = read.rows
        ledger.merge(read.ledger)
        if not attempts:
            why = f"it ended as {rollout.status} before any attempt began"
            _exclude(rollout, "not_run", why, ledger)


def _exclude(rollout: Rollout, reason: ExclusionReason, detail: str, ledger: Ledger) -> None:
    ledger.add_rollout(rollout.rollout_id)
    ledger.exclude(
        Exclusion(kind="rollout", rollout_id=rollout.rollout_id, reason=reason, detail=detail)
    )


def drop_groups(ended: Sequence[Ended]) -> None:
    """Let no rollout be trained beside which, in its group, one had a failure of infrastructure."""
    failed = {one.group: one.rollout.rollout_id for one in ended if one.infrastructure is not None}
    for one in ended:
        if one.group in failed and one.unusable is None:
            why = f"infrastructure failed a model call of rollout {failed[one.group]!r} of its task"
            one.unusable = ("unused_group", why)


def _takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function has a parameter of this name, or any."""
    parameters = inspect.signature(function).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
