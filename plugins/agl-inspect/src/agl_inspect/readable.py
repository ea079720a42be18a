"""What can be read of a store: a damaged record stops no command, and is named."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from agl.cli.shared import note, read_and_close
from agl.errors import DamagedRecordError
from agl.store.base import LightningStore
from agl.store.forwarding import StandInStore
from agl_sqlite.damage import PAGED, query_undamaged

T = TypeVar("T")


def read_undamaged(
    store: LightningStore, read: Callable[[LightningStore], Awaitable[T]], *, spans: bool = False
) -> T:
    """What ``read`` finds in a store, which is closed; what was left out is told on stderr.

    With ``spans`` damaged spans are left out as well. Who reads a reward must not do that: without
    the last one an earlier one would count.
    """
    undamaged = _Undamaged(store, PAGED if spans else PAGED - {"query_spans"})
    try:
        return read_and_close(undamaged, read)
    finally:
        for problem in undamaged.damaged:
            note(f"left out, as it is damaged: {problem}")


class _Undamaged(StandInStore):
    def __init__(self, store: LightningStore, queries: set[str]) -> None:
        super().__init__(store)
        self._queries = queries
        self.damaged: dict[str, None] = {}

    async def call(self, operation: str, arguments: dict[str, Any]) -> Any:
        ask = partial(super().call, operation)
        try:
            return await ask(arguments)
        except DamagedRecordError:
            if operation not in self._queries:
                raise
            return await query_undamaged(ask, arguments, self.damaged)
