"""Runs tasks through the store and reads back what came of them: rewards, rows, ledger."""

import asyncio
import contextlib
import itertools
import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

from agl.algorithm.adapter import TraceAdapter
from agl.algorithm.gateway import Gateway
from agl.errors import (
    AlgorithmError,
    InvalidTransitionError,
    StoppedError,
    StoreUnavailableError,
    UnknownRecordError,
)
from agl.store.base import LightningStore
from agl.store.queries import PAGE
from agl.store.rules import ENDED, QUEUED
from agl.types import EnqueueRolloutRequest, Rollout, RolloutConfig, RolloutMode
from agl_learning.collect.group_judge import Judging
from agl_learning.collect.results import COUNTED, Collected, Ended, drop_groups
from agl_learning.collect.rollout_reader import Reader
from agl_models.task_group import gather_or_cancel
from agl_records.credit import GroupRule
from agl_records.ledger.ledger import Ledger
from agl_records.seeds import SEED, seed_of
from agl_records.training_data import TrainedModel
from agl_runs.failures import DEFAULT, FailureBudget, Failures
from agl_runs.mixed_calls import MixingCheck

logger = logging.getLogger("agl.learning")

PATIENCE_SECONDS = 60.0
"""After so long without the end of a rollout, say so."""
CANCEL_SECONDS = 10.0
"""How long a run that ends tries to cancel what it has queued."""
AS_ASKED = "as it was asked to"
"""Why a run has stopped."""


@dataclass(eq=False)
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
        failures: What becomes of a rollout that failed.
        model: The one that is trained; None takes the calls of all.
        seed: Of the run; None leaves rollouts without seeds.
        asked_to_stop: Once it is set, rollouts that are queued are cancelled, and when those under
            way have ended, ``collect`` and ``run`` raise ``StoppedError``.
    """

    store: LightningStore
    gateway: Gateway | None
    adapter: InitVar[TraceAdapter[Any] | None]
    config: RolloutConfig
    patience_seconds: float = PATIENCE_SECONDS
    failures: Failures = DEFAULT
    model: InitVar[TrainedModel | None] = None
    seed: int | None = None
    asked_to_stop: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self, adapter: TraceAdapter[Any] | None, model: TrainedModel | None) -> None:
        self.reader = Reader(self.store, adapter, self.failures, model)
        """Its ``adapter`` and its ``model`` may be set later."""
        self._budget, self._mixing = FailureBudget(self.failures), MixingCheck()
        rule = getattr(adapter, "credit", None)
        is_judge = isinstance(rule, GroupRule)
        self._judging = Judging(rule, self.store, self.gateway) if is_judge else None

    async def collect(
        self,
        tasks: Sequence[Any],
        copies: int,
        mode: RolloutMode,
        resources_id: str,
        metadata: dict[str, Any],
        key: str | None = None,
        first_group: int = 0,
        at_once: bool = False,
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
            key: A unique name of this request. Asked for again under it by a later start of the
                run, rollouts that succeeded are not run a second time, and those that did not are:
                they may have failed because that start died. ``metadata`` tells starts apart: it
                needs ``run`` and ``generation``, another one in each start. Without them what
                failed stays failed.
            first_group: The group of the first task.
            at_once: Take what there is under ``key``: what has not ended is cancelled.

        Raises:
            ConfigError: The adapter does not give training rows.
        """
        start = time.perf_counter()
        self.reader.check_model()
        place, seed = (metadata.get("step"), metadata.get("round", 0)), self.seed
        requests = [
            EnqueueRolloutRequest(
                input=task,
                mode=mode,
                resources_id=resources_id,
                config=self.config,
                metadata={
                    **metadata,
                    "group": group,
                    **({} if seed is None else {SEED: seed_of(seed, mode, *place, group, copy)}),
                },
                key=None if key is None else f"{key}/{group}/{copy}",
            )
            for group, task in enumerate(tasks, first_group)
            for copy in range(copies)
        ]
        collected = Collected([], Ledger(), 0.0)
        limit = 0.0 if at_once else None
        collected.ended, lost = await self._run_all(requests, limit, collected.ledger, True)
        for one in lost:
            collected.exclude_lost(one)
        drop_groups(collected.ended, self.failures)
        if self._judging is not None and not at_once:  # of what is given up nothing is trained
            await self._judging.judge(collected, self.reader.model, metadata)
        collected.seconds = time.perf_counter() - start
        return collected

    async def read(self, rollout_ids: Sequence[tuple[int, str]], lost: Sequence[str]) -> Collected:
        """What an earlier start of the run collected, from the store.

        Args:
            rollout_ids: (position of its task in the request, id) of each rollout that counts, in
                their order.
            lost: Ids of those that ran once more; see ``Collected``. The store must have all of
                these rollouts: ask ``missing`` before.
        """
        start = time.perf_counter()
        self.reader.check_model()
        wanted = [*rollout_ids, *((0, rollout_id) for rollout_id in lost)]
        found = {one.rollout_id: one for one in await self._find([one for _, one in wanted])}
        collected = Collected([], Ledger(), 0.0)
        read = await gather_or_cancel(
            self.reader.read(found[one], group, collected.ledger) for group, one in wanted
        )
        collected.ended = [*read[: len(rollout_ids)]]
        for one in read[len(rollout_ids) :]:
            collected.exclude_lost(one)
        drop_groups(collected.ended, self.failures)
        if self._judging is not None:
            await self._judging.judge(collected, self.reader.model, None)
        collected.seconds = time.perf_counter() - start
        return collected

    async def missing(self, rollout_ids: list[str]) -> list[str]:
        """Those of these rollouts that the store does not have, or not as they ended."""
        found = {one.rollout_id for one in await self._find(rollout_ids) if one.status in ENDED}
        return [rollout_id for rollout_id in rollout_ids if rollout_id not in found]

    async def _find(self, rollout_ids: list[str]) -> list[Rollout]:
        pages = [rollout_ids[at : at + PAGE] for at in range(0, len(rollout_ids), PAGE)]
        return [
            rollout
            for page in pages
            for rollout in await self.store.query_rollouts(rollout_id_in=page)
        ]

    async def run(
        self, requests: Sequence[EnqueueRolloutRequest], timeout_seconds: float | None = None
    ) -> list[Ended]:
        """Run requests that may differ in everything, and wait for all of them.

        Cancelled, it leaves them in the store: who asks again under the same keys goes on there.
        Those with a key that a dead start of the run, or a dead gateway, took along run again, each
        in its place; see ``COUNTED``.

        Args:
            requests: Their position is the ``group`` of what comes back.
            timeout_seconds: What has not ended after so long is cancelled.

        Returns:
            As many as there are requests, in their order.
        """
        return (await self._run_all(requests, timeout_seconds, Ledger(), False))[0]

    async def _run_all(
        self,
        requests: Sequence[EnqueueRolloutRequest],
        timeout_seconds: float | None,
        ledger: Ledger,
        cancels: bool,
    ) -> tuple[list[Ended], list[Ended]]:
        """What came of all of them, and those in whose place others ran.

        Those that have a key run again as ``Failures`` has it, in each start.
        """
        ended, lost = await self._run(requests, timeout_seconds, ledger, cancels), list[Ended]()
        tries = Counter[int]()
        for again in itertools.count(1):
            places: list[int] = []
            for n, (one, request) in enumerate(zip(ended, requests, strict=True)):
                if _is_lost(one, request):
                    places.append(n)
                elif request.key and self.failures.runs_again(one.failed):
                    tries[n] += 1
                    if tries[n] <= self.failures.retries:
                        places.append(n)
            if not places:
                break
            retries = [
                requests[n].model_copy(update={"key": f"{requests[n].key}/again-{again}"})
                for n in places
            ]
            newer = await self._run(retries, timeout_seconds, ledger, cancels)
            for n, one in zip(places, newer, strict=True):
                lost.append(ended[n])
                ended[n] = one
        self._mixing.look(one.ran for one in ended)
        if timeout_seconds != 0 and (self.gateway is None or not self.gateway.spent_budget()):
            self._budget.add(one.failed for one in ended)
        return ended, lost

    async def _run(
        self,
        requests: Sequence[EnqueueRolloutRequest],
        timeout_seconds: float | None,
        ledger: Ledger,
        cancels: bool,
    ) -> list[Ended]:
        rollouts = await self.store.enqueue_many_rollouts(requests)
        rollout_ids = [rollout.rollout_id for rollout in rollouts]
        try:
            ended, late = await self._wait(rollout_ids, timeout_seconds)
        except BaseException:
            if cancels:
                # A store that has failed keeps nobody from ending; the next start cancels the rest.
                with contextlib.suppress(StoreUnavailableError, TimeoutError):
                    async with asyncio.timeout(CANCEL_SECONDS):
                        await self._cancel(rollout_ids)
            raise
        if self.gateway is not None:
            await self.gateway.flush()
        read = await gather_or_cancel(
            self.reader.read(
                ended[rollout_id], (request.metadata or {}).get("group", number), ledger
            )
            for number, (rollout_id, request) in enumerate(zip(rollout_ids, requests, strict=True))
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
            patience = self.patience_seconds
            if until is not None:
                patience = max(0.0, min(patience, until - time.monotonic()))
            began = time.monotonic()
            ended = await self._wait_for(rollout_ids, patience)
            if len(ended) == len(rollout_ids):
                return {rollout.rollout_id: rollout for rollout in ended}, late
            known = {rollout.rollout_id for rollout in await self._find(rollout_ids)}
            if gone := [each for each in rollout_ids if each not in known]:
                raise AlgorithmError(
                    f"rollouts were deleted while the algorithm waited for them: {', '.join(gone)}"
                    ". When the run goes on, their tasks run again"
                )
            if until is not None and time.monotonic() >= until:
                late |= await self._cancel(rollout_ids)
            elif len(ended) == done and time.monotonic() - began > patience / 2:
                logger.warning(
                    "%d of %d rollouts have not ended, and none did in the last %.0f seconds. "
                    "Are runners connected, and do rollouts have a time limit?",
                    len(rollout_ids) - done,
                    len(rollout_ids),
                    self.patience_seconds,
                )
            done = len(ended)

    async def _wait_for(self, rollout_ids: list[str], timeout: float) -> Sequence[Rollout]:
        """Those that have ended by then; asked to stop, it waits for those under way only.

        Raises:
            StoppedError: All have ended, and some of them were not begun.
        """
        store = self.store
        waiting = asyncio.ensure_future(
            store.wait_for_rollouts(rollout_ids=rollout_ids, timeout=timeout)
        )
        asked = asyncio.ensure_future(self.asked_to_stop.wait())
        try:
            # Who does not wait is not stopped.
            either = {waiting, asked} if timeout > 0 else {waiting}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
            for rollout in await self._find(rollout_ids):
                if rollout.status in QUEUED:
                    await self._cancel_one(rollout.rollout_id, if_status=[*QUEUED])
            await store.wait_for_rollouts(rollout_ids=rollout_ids)
            raise StoppedError(AS_ASKED)
        finally:
            waiting.cancel()
            asked.cancel()

    async def _cancel(self, rollout_ids: list[str]) -> set[str]:
        ended = await self.store.wait_for_rollouts(rollout_ids=rollout_ids, timeout=0)
        late = set(rollout_ids) - {rollout.rollout_id for rollout in ended}
        for rollout_id in late:
            await self._cancel_one(rollout_id)
        return late

    async def _cancel_one(self, rollout_id: str, **only: Any) -> None:
        with contextlib.suppress(InvalidTransitionError, UnknownRecordError):  # it has ended
            await self.store.update_rollout(rollout_id, status="cancelled", **only)


def _is_lost(one: Ended, request: EnqueueRolloutRequest) -> bool:
    """Whether a rollout of an earlier start did not come to a good end: that start has died."""
    now, of_it = request.metadata or {}, one.rollout.metadata or {}
    start = {name: now[name] for name in ("run", "generation") if name in now}
    if request.key is None or COUNTED in of_it:
        return False
    is_earlier = any(of_it.get(name) != value for name, value in start.items())
    return is_earlier and one.failed is not None
