"""Runs tasks through the store and reads back what came of them: rewards, rows, ledger."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from agl.emitter import find_final_reward
from agl.errors import ConfigError, InvalidTransitionError
from agl.types import (
    EnqueueRolloutRequest,
    Exclusion,
    Ledger,
    Rollout,
    RolloutConfig,
    RolloutMode,
    TrainingRow,
)

if TYPE_CHECKING:
    from agl.adapter import TraceAdapter
    from agl.gateway import Gateway
    from agl.store.base import LightningStore

logger = logging.getLogger("agl.collect")

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
    """The final one of its last successful attempt; None for a failed rollout."""
    rows: list[TrainingRow] = field(default_factory=list[TrainingRow])


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
            spans, as the adapter ``rows`` does.
        config: Limits and retries of each rollout.
        patience_seconds: After so long without the end of a rollout it says so. More, where many
            requests wait for the same runners.
    """

    def __init__(
        self,
        store: "LightningStore",
        gateway: "Gateway | None",
        adapter: "TraceAdapter[Any]",
        config: RolloutConfig,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._store = store
        self._gateway = gateway
        self._adapter = adapter
        self._config = config
        self._patience_seconds = patience_seconds

    async def collect(
        self,
        tasks: Sequence[Any],
        copies: int,
        mode: RolloutMode,
        resources_id: str,
        metadata: dict[str, Any],
        key: str | None = None,
    ) -> Collected:
        """Run each task ``copies`` times and wait for all of them.

        Cancelled, or when the store fails, it cancels what has not ended.

        Args:
            tasks: Inputs of the rollouts.
            copies: How often each of them runs.
            mode: Of the rollouts.
            resources_id: What they work with.
            metadata: Of every rollout; ``group``, the position of its task, comes to it.
            key: A unique name of this request. Asked for again under it, after a kill for example,
                rollouts that are in the store are not run a second time.

        Raises:
            ConfigError: The adapter does not give training rows.
        """
        start = time.perf_counter()
        rollouts = await self._store.enqueue_many_rollouts(
            [
                EnqueueRolloutRequest(
                    input=task,
                    mode=mode,
                    resources_id=resources_id,
                    config=self._config,
                    metadata={**metadata, "group": group},
                    key=None if key is None else f"{key}/{group}/{copy}",
                )
                for group, task in enumerate(tasks)
                for copy in range(copies)
            ]
        )
        rollout_ids = [rollout.rollout_id for rollout in rollouts]
        try:
            ended = await self._wait(rollout_ids)
        except BaseException:
            await self._cancel(rollout_ids)
            raise
        if self._gateway is not None:
            await self._gateway.flush()
        ledger = Ledger()
        read = await asyncio.gather(*(self._read(rollout, ledger) for rollout in ended))
        return Collected(list(read), ledger, time.perf_counter() - start)

    async def _wait(self, rollout_ids: list[str]) -> list[Rollout]:
        done = -1
        while True:
            ended = await self._store.wait_for_rollouts(
                rollout_ids=rollout_ids, timeout=self._patience_seconds
            )
            if len(ended) == len(rollout_ids):
                return ended
            if len(ended) == done:
                logger.warning(
                    "%d of %d rollouts have not ended, and none did in the last %.0f seconds. "
                    "Are runners connected, and do rollouts have a time limit?",
                    len(rollout_ids) - done,
                    len(rollout_ids),
                    self._patience_seconds,
                )
            done = len(ended)

    async def _cancel(self, rollout_ids: list[str]) -> None:
        ended = await self._store.wait_for_rollouts(rollout_ids=rollout_ids, timeout=0)
        over = {rollout.rollout_id for rollout in ended}
        for rollout_id in rollout_ids:
            if rollout_id not in over:
                with contextlib.suppress(InvalidTransitionError):  # it has ended meanwhile
                    await self._store.update_rollout(rollout_id, status="cancelled")

    async def _read(self, rollout: Rollout, ledger: Ledger) -> Ended:
        spans = await self._store.query_spans(rollout.rollout_id)
        attempts = await self._store.query_attempts(rollout.rollout_id)
        adapt: Callable[..., Any] = self._adapter.adapt
        adapted = adapt(list(spans), attempts=list(attempts))
        if not hasattr(adapted, "rows") or not hasattr(adapted, "ledger"):
            raise ConfigError(
                f"the algorithm learns from training rows; the adapter "
                f"{type(self._adapter).__name__} gave {type(adapted).__name__}. Use the adapter "
                "'rows', or leave the adapter out"
            )
        read = cast(_Rows, adapted)
        ledger.merge(read.ledger)
        if not attempts:
            ledger.add_rollout(rollout.rollout_id)
            ledger.exclude(
                Exclusion(
                    kind="rollout",
                    rollout_id=rollout.rollout_id,
                    reason="not_run",
                    detail=f"it ended as {rollout.status} before any attempt began",
                )
            )
        reward = None
        if rollout.status == "succeeded":
            used = [a.attempt_id for a in attempts if a.status == "succeeded"][-1:]
            reward = find_final_reward([span for span in spans if span.attempt_id in used])
        group = (rollout.metadata or {})["group"]
        return Ended(rollout, group, reward, read.rows)
