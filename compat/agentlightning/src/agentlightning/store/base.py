"""The contract of a store."""

import asyncio
import time
from abc import ABC
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from agl.errors import NotSupportedError
from agl.store.base import (
    UNSET as UNSET,
    AttemptEnd,
    LightningStore as _LightningStore,
    LightningStoreCapabilities as LightningStoreCapabilities,
    LightningStoreStatistics as LightningStoreStatistics,
    Turn,
    Unset as Unset,
)
from agl.store.packed_span import AnySpan, unpacked
from agl.types import (
    AttemptedRollout,
    EnqueueRolloutRequest,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    Span,
    Worker,
)
from agl.types.spans import UNASSIGNED

T = TypeVar("T")

POLL_SECONDS = 0.1
"""Between two looks into the queue of a store that cannot wait."""
_REQUEST = ("input", "mode", "resources_id", "config", "metadata")
_PARTS_OF_A_TURN = (
    "add_span",
    "add_many_spans",
    "update_attempt",
    "dequeue_rollout",
    "dequeue_many_rollouts",
)


class OneByOne(_LightningStore):
    """What agl asks for many at once goes through a subclass's method for one, where it has one.

    Such a method may call that of its base, which then stores past it.
    """

    def _has(self, name: str) -> bool:
        """Whether a subclass has a method of its own of this name."""
        order = type(self).__mro__
        owner = next(cls for cls in order if name in vars(cls))
        return order.index(owner) < order.index(OneByOne)

    def _refuse_if_only_of_turn(self, name: str) -> None:
        """Refuse what the contract makes of ``turn``, if a subclass makes a turn of its parts."""
        order = type(self).__mro__
        after = order[order.index(OneByOne) + 1 :]
        owner = next(cls for cls in after if name in vars(cls))
        if owner is _LightningStore and any(map(self._has, _PARTS_OF_A_TURN)):
            kind = type(self).__name__
            raise NotSupportedError(
                f"{kind} has no {name}(); write it in {kind}, or use another store"
            )

    async def enqueue_rollout(self, *args: Any, **kwargs: Any) -> Rollout:
        if not self._has("enqueue_rollout"):
            return await super().enqueue_rollout(*args, **kwargs)
        given = dict(zip(_REQUEST, args, strict=False)) | kwargs
        return (await super().enqueue_many_rollouts([EnqueueRolloutRequest(**given)]))[0]

    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest]
    ) -> Sequence[Rollout]:
        """Queue them one by one."""
        if not self._has("enqueue_rollout"):
            return await super().enqueue_many_rollouts(rollouts)
        return [
            await self.enqueue_rollout(
                each.input, each.mode, each.resources_id, each.config, each.metadata
            )
            for each in rollouts
        ]

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, wait_seconds: float = 0.0
    ) -> AttemptedRollout | None:
        if not self._has("dequeue_rollout"):
            return await super().dequeue_rollout(worker_id, wait_seconds=wait_seconds)
        claimed = await super().dequeue_many_rollouts(
            limit=1, worker_id=worker_id, wait_seconds=wait_seconds
        )
        return claimed[0] if claimed else None

    async def dequeue_many_rollouts(
        self,
        *,
        limit: int = 1,
        worker_id: str | None = None,
        wait_seconds: float = 0.0,
        key: str | None = None,
    ) -> Sequence[AttemptedRollout]:
        """Claim one after the other; while there is none, look again and again."""
        if not self._has("dequeue_rollout"):
            self._refuse_if_only_of_turn("dequeue_many_rollouts")
            return await super().dequeue_many_rollouts(
                limit=limit, worker_id=worker_id, wait_seconds=wait_seconds, key=key
            )
        claimed: list[AttemptedRollout] = []
        deadline = time.monotonic() + wait_seconds
        while len(claimed) < limit:
            rollout = await self.dequeue_rollout(worker_id)
            if rollout is not None:
                claimed.append(rollout)
            elif claimed or time.monotonic() >= deadline:
                break
            else:
                await asyncio.sleep(POLL_SECONDS)
        return claimed

    async def add_span(self, span: Span) -> Span | None:
        if not self._has("add_span"):
            return await super().add_span(span)
        added = await super().add_many_spans([span])
        return added[0] if added else None

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        """Store them one by one, each with a number."""
        if not self._has("add_span"):
            self._refuse_if_only_of_turn("add_many_spans")
            return await super().add_many_spans(spans)
        stored: list[Span] = []
        for span in spans:
            if span.sequence_id == UNASSIGNED:
                number = await self.get_next_span_sequence_id(span.rollout_id, span.attempt_id)
                span = span.model_copy(update={"sequence_id": number})
            if (kept := await self.add_span(span)) is not None:
                stored.append(kept)
        return stored

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        if not self._has("get_next_span_sequence_id"):
            return await super().get_next_span_sequence_id(rollout_id, attempt_id)
        return (await super().get_many_span_sequence_ids([(rollout_id, attempt_id)]))[0]

    async def get_many_span_sequence_ids(
        self, rollout_attempt_ids: Sequence[tuple[str, str]]
    ) -> Sequence[int]:
        """Reserve them one by one."""
        if not self._has("get_next_span_sequence_id"):
            return await super().get_many_span_sequence_ids(rollout_attempt_ids)
        return [await self.get_next_span_sequence_id(*pair) for pair in rollout_attempt_ids]

    async def turn(
        self,
        spans: Sequence[AnySpan] = (),
        *,
        finish: AttemptEnd | None = None,
        limit: int = 1,
        worker_id: str | None = None,
        wait_seconds: float = 0.0,
        key: str | None = None,
    ) -> Turn:
        """Part by part, where a subclass has a method of its own for a part."""
        claim: dict[str, Any] = {"limit": limit, "worker_id": worker_id}
        claim |= {name: v for name, v in (("wait_seconds", wait_seconds), ("key", key)) if v}
        if not any(self._has(name) for name in _PARTS_OF_A_TURN):
            return await super().turn(spans, finish=finish, **claim)
        added = await self.add_many_spans(unpacked(spans)) if spans else ()
        attempt = None
        if finish is not None:
            given: dict[str, Any] = {"status": finish.status}
            if finish.error is not None:
                given["error"] = finish.error
            attempt = await self.update_attempt(finish.rollout_id, finish.attempt_id, **given)
        return Turn(added, attempt, await self.dequeue_many_rollouts(**claim) if limit > 0 else ())


class LightningStore(OneByOne, ABC):
    """A store of one's own, whose author knew the methods of 0.3 and wrote some of them.

    What agl asks beyond them (many at once, waiting) is done with those that are there. Every
    store of agl is one, too.
    """

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        """Nothing, until the author says so."""
        return {"thread_safe": False, "async_safe": False, "zero_copy": False, "otlp_traces": False}

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return issubclass(other, _LightningStore) if cls is LightningStore else NotImplemented

    async def query_rollouts(self, **filters: Any) -> PaginatedResult[Rollout]:
        """Those of given ids, one by one; others cannot be looked for."""
        ids = filters.get("rollout_id_in") or filters.get("rollout_ids")
        if not ids or not self._has("get_rollout_by_id"):
            return await super().query_rollouts(**filters)
        found = [await self.get_rollout_by_id(rollout_id) for rollout_id in ids]
        wanted = filters.get("status_in") or filters.get("status")
        return _page(each for each in found if each and (not wanted or each.status in wanted))

    async def query_resources(self, **filters: Any) -> PaginatedResult[ResourcesUpdate]:
        """The snapshot of a given id; others cannot be looked for."""
        if "resources_id" not in filters or not self._has("get_resources_by_id"):
            return await super().query_resources(**filters)
        found = await self.get_resources_by_id(filters["resources_id"])
        return _page([found] if found else [])

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        """None: the store keeps no workers."""
        return None

    async def update_worker(self, worker_id: str, heartbeat_stats: Any = UNSET) -> Worker:
        """Note nothing: the store keeps no workers."""
        return Worker(worker_id=worker_id)


def _page(items: Iterable[T]) -> PaginatedResult[T]:
    found = list(items)
    return PaginatedResult(items=found, limit=-1, offset=0, total=len(found))


def is_queuing(rollout: Rollout) -> bool:
    """Whether it waits for a runner."""
    return rollout.status in ("queuing", "requeuing")


def is_running(rollout: Rollout) -> bool:
    """Whether a runner has it."""
    return rollout.status in ("preparing", "running")


def is_finished(rollout: Rollout) -> bool:
    """Whether it has ended."""
    return rollout.status in ("succeeded", "failed", "cancelled")
