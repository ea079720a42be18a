"""The contract of a store, as far as it is asked; the rest is in ``base``."""

from collections.abc import Iterable, Sequence
from typing import Literal, TypeVar

from agl.store.operation import operation
from agl.store.rules import IMPORTED
from agl.types import (
    Attempt,
    Document,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    RolloutMode,
    RolloutStatus,
    Span,
    Worker,
    WorkerStatus,
)

SortOrder = Literal["asc", "desc"]
FilterLogic = Literal["and", "or"]

T = TypeVar("T")


class StoreReads:
    """The operations that change nothing.

    Queries take ``limit`` -1 for "all", an ``offset``, a field to sort by and an order, and return
    a ``PaginatedResult``; an unknown sort field, ``limit`` 0 or below -1, or a negative offset is
    an ``InvalidQueryError``.
    """

    @operation
    async def query_spans(
        self,
        rollout_id: str,
        attempt_id: str | Literal["latest"] | None = None,
        *,
        trace_id: str | None = None,
        trace_id_contains: str | None = None,
        span_id: str | None = None,
        span_id_contains: str | None = None,
        parent_id: str | None = None,
        parent_id_contains: str | None = None,
        name: str | None = None,
        name_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        limit: int = -1,
        offset: int = 0,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
    ) -> PaginatedResult[Span]:
        """Spans of a rollout, or of one attempt of it. Empty for unknown ids.

        Args:
            attempt_id: Only this attempt; ``"latest"`` for the newest; None for all.
            filter_logic: How the exact and ``_contains`` filters combine; the two ids always hold.
        """
        ...

    @operation
    async def query_rollouts(
        self,
        *,
        status_in: Sequence[RolloutStatus] | None = None,
        rollout_id_in: Sequence[str] | None = None,
        rollout_id_contains: str | None = None,
        mode: RolloutMode | None = None,
        run: str | None = None,
        reward_below: float | None = None,
        reward_above: float | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
        after: str | None = None,
        status: Sequence[RolloutStatus] | None = None,
        rollout_ids: Sequence[str] | None = None,
    ) -> PaginatedResult[Rollout]:
        """Rollouts; those with an attempt come as ``AttemptedRollout``.

        An empty ``status_in`` or ``rollout_id_in`` matches nothing. ``status`` and ``rollout_ids``
        are 0.3's older names of the two. ``run`` is the key of that name in ``metadata``.
        ``reward_below`` and ``reward_above`` match a ``reward`` that is smaller or larger. Default
        order: as enqueued; by ``reward`` come only rollouts with one, of equal ones the newest
        first for ``desc``. ``after`` is the id of a stored rollout: only those behind it in this
        order are read, and ``total`` counts all the same.
        """
        ...

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        """The rollout (an ``AttemptedRollout`` once it has an attempt), or None."""
        return _first(await self.query_rollouts(rollout_id_in=[rollout_id]))

    @operation
    async def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Attempt]:
        """Attempts of a rollout; empty for an unknown one."""
        ...

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        """The newest attempt, or None."""
        found = await self.query_attempts(rollout_id, sort_order="desc", limit=1)
        return _first(found)

    @operation
    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> list[Rollout]:
        """Wait until all these rollouts have ended.

        Args:
            rollout_ids: Which; unknown ids are left out of the answer and not waited for.
            timeout: Seconds to wait at most; None for as long as it takes, 0 to look only.

        Returns:
            Those that have ended, in the order of ``rollout_ids``.
        """
        ...

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        """The snapshot, or None."""
        return _first(await self.query_resources(resources_id=resources_id))

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        """The snapshot that was added or replaced last, or None."""
        found = await self.query_resources(sort_by="update_time", sort_order="desc")
        return _first(each for each in found if not each.resources_id.startswith(IMPORTED))

    @operation
    async def query_resources(
        self,
        *,
        resources_id: str | None = None,
        resources_id_contains: str | None = None,
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[ResourcesUpdate]:
        """Snapshots; default order: as created."""
        ...

    @operation
    async def query_documents(
        self,
        kind: str,
        *,
        key_in: Sequence[str] | None = None,
        key_prefix: str = "",
        rollout_id_in: Sequence[str] | None = None,
        after: str | None = None,
        limit: int = -1,
    ) -> PaginatedResult[Document]:
        """Documents of a kind, in the order of their keys.

        Args:
            key_in: Only these; an empty one matches nothing.
            after: Only keys behind this one, the last of the page before; ``total`` counts all.
        """
        ...

    @operation
    async def query_workers(
        self,
        *,
        status_in: Sequence[WorkerStatus] | None = None,
        worker_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Worker]:
        """Workers; default order: as first seen."""
        ...

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        """The worker, or None."""
        found = await self.query_workers(worker_id_contains=worker_id)
        return _first(each for each in found if each.worker_id == worker_id)


def _first(found: Iterable[T]) -> T | None:
    return next(iter(found), None)
