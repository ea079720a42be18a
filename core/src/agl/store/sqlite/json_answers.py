"""Two answers in JSON, made of what SQLite stores without a record in between."""

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from agl.store.base import LightningStore
from agl.store.engine.store import EngineStore
from agl.store.queries import query_of
from agl.store.sqlite.lookups import SqliteLookups

T = TypeVar("T")

_SPANS_AT_ONCE = 32
"""Other threads run between two reads: a trace may be long."""


class JsonAnswers(EngineStore):
    """The ``NAME_json`` methods of a store over SQLite; see ``LightningStore``."""

    @abstractmethod
    async def _read(self, lookup: Callable[[SqliteLookups], T]) -> T: ...

    async def get_rollout_by_id_json(self, rollout_id: str) -> bytes | None:
        """See ``LightningStore``."""
        return await self._read(lambda lookups: lookups.rollout_json(rollout_id))

    async def query_spans_json(self, **arguments: Any) -> list[bytes]:
        """See ``LightningStore``."""
        ids = arguments.pop("rollout_id"), arguments.pop("attempt_id", None)
        query = query_of(LightningStore.query_spans, arguments)
        page = await self._read(lambda lookups: lookups.span_keys(*ids, query))
        pieces = [b'{"items":[']
        for begin in range(0, len(page), _SPANS_AT_ONCE):
            keys = page.items[begin : begin + _SPANS_AT_ONCE]
            text = await self._read(partial(SqliteLookups.spans_json, keys=keys))
            pieces.append(b"," + text if begin else text)
            await asyncio.sleep(0)  # a store in memory reads in this thread
        end = b'],"limit":%d,"offset":%d,"total":%d}' % (query.limit, query.offset, page.total)
        return [*pieces, end]
