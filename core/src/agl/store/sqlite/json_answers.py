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


class JsonAnswers(EngineStore):
    """The ``NAME_json`` methods of a store over SQLite; see ``LightningStore``."""

    @abstractmethod
    async def _read(self, lookup: Callable[[SqliteLookups], T]) -> T: ...

    async def _read_here(self, lookup: Callable[[SqliteLookups], T]) -> T:
        """Read in this thread: a few rows by key take less than handing the lookup on."""
        return await self._read(lookup)

    async def get_rollout_by_id_json(self, rollout_id: str) -> bytes | None:
        """See ``LightningStore``."""
        return await self._read_here(lambda lookups: lookups.rollout_json(rollout_id))

    async def query_spans_json(self, **arguments: Any) -> list[bytes]:
        """See ``LightningStore``; in pieces, as a trace may be long."""
        ids = arguments.pop("rollout_id"), arguments.pop("attempt_id", None)
        query = query_of(LightningStore.query_spans, arguments)

        def first(lookups: SqliteLookups, *, at_once: bool = False) -> Any:
            return lookups.first_spans(*ids, query, at_once=at_once)

        found = await self._read_here(partial(first, at_once=True)) or await self._read(first)
        keys, total, (num_read, text) = found
        pieces = [text]
        while num_read < len(keys):
            await asyncio.sleep(0)  # a store in memory reads in this thread
            some = partial(SqliteLookups.some_spans_json, keys=keys, begin=num_read)
            count, text = await self._read(some)
            pieces.append(b"," + text)
            num_read += count
        end = b'],"limit":%d,"offset":%d,"total":%d}' % (query.limit, query.offset, total)
        return [b'{"items":[', *pieces, end]
