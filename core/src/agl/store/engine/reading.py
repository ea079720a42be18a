"""What a store answers out of ``Lookups``: the part of the contract that changes nothing."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from agl.errors import InvalidQueryError
from agl.store.base import LightningStore
from agl.store.engine.tables import Lookups, SpanReader
from agl.store.packed_span import span_of
from agl.store.queries import DocumentQuery, make_query
from agl.types import Attempt, Document, PaginatedResult, ResourcesUpdate, Rollout, Worker
from agl.types.records import Record
from agl.utils.json_values import copy_of_record

T = TypeVar("T")
R = TypeVar("R", bound=Record)


class ReadingStore(LightningStore):
    """A store whose subclass says how a lookup is run."""

    @abstractmethod
    async def _read(self, lookup: Callable[[Lookups], T]) -> T:
        """Run a lookup; it sees every write that was acknowledged."""

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        found = await self._read(lambda lookups: lookups.views([rollout_id]))
        return found[0] if found else None

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        return await self._look_up(lambda lookups: lookups.latest_attempt(rollout_id))

    async def _look_up(self, lookup: Callable[[Lookups], R | None]) -> R | None:
        record = await self._read(lookup)
        return None if record is None else copy_of_record(record)

    async def query_rollouts(self, **filters: Any) -> PaginatedResult[Rollout]:
        query = make_query("rollouts", **filters)

        def lookup(lookups: Lookups) -> PaginatedResult[Rollout]:
            if query.after is not None and not lookups.views([query.after]):
                raise InvalidQueryError(f"rollouts: after {query.after!r}: no such rollout is here")
            return lookups.query_rollouts(query)

        return await self._read(lookup)

    async def query_attempts(
        self, rollout_id: str, *, sort_by: str | None = "sequence_id", **filters: Any
    ) -> PaginatedResult[Attempt]:
        query = make_query("attempts", sort_by=sort_by, **filters)
        return await self._read(lambda lookups: lookups.query_attempts(rollout_id, query))

    async def query_spans(
        self,
        rollout_id: str,
        attempt_id: str | None = None,
        *,
        sort_by: str | None = "sequence_id",
        read: SpanReader[Any] = span_of,
        **filters: Any,
    ) -> PaginatedResult[Any]:
        """The same; ``read`` may make something else than a ``Span``."""
        query = make_query("spans", sort_by=sort_by, **filters)
        return await self._read(
            lambda lookups: lookups.query_spans(rollout_id, attempt_id, query, read)
        )

    async def query_documents(self, kind: str, **filters: Any) -> PaginatedResult[Document]:
        query = DocumentQuery(kind, **filters)
        make_query("documents", limit=query.limit)
        return await self._read(lambda lookups: lookups.query_documents(query))

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        return await self._look_up(lambda lookups: lookups.resources(resources_id))

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        return await self._look_up(lambda lookups: lookups.latest_resources())

    async def query_resources(self, **filters: Any) -> PaginatedResult[ResourcesUpdate]:
        query = make_query("resources", **filters)
        return await self._read(lambda lookups: lookups.query_resources(query))

    async def query_workers(self, **filters: Any) -> PaginatedResult[Worker]:
        query = make_query("workers", **filters)
        return await self._read(lambda lookups: lookups.query_workers(query))
