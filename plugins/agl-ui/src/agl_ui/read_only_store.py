"""A store as one sees it who may look and nothing else; one damaged record hides no other."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from agl.errors import AglError, ConfigError, DamagedRecordError, NotAllowedError
from agl.store.base import LightningStore
from agl.store.forwarding import ForwardingStore
from agl.store.queries import PAGE, SORTABLE
from agl.types import PaginatedResult
from agl_http.roles import ALLOWED, visible

MOST_DAMAGED = 50
"""Records that one question passes over; a store with more of them is said to be damaged."""


@dataclass
class Damage:
    """What a page passes over, and says."""

    problems: dict[str, None] = field(default_factory=dict[str, None])
    """In their order, each once."""
    spans: bool = False
    """Whether spans are passed over as well. Who reads a reward must not: without the last one an
    earlier one would count."""


DAMAGE: ContextVar[Damage | None] = ContextVar("DAMAGE", default=None)
"""Of the page that is being written; None where damage is to be told by an error."""


_PAGED = {f"query_{kind}" for kind in SORTABLE} - {"query_documents"}
"""Queries whose pages have an offset."""


class ReadOnlyStore(ForwardingStore):
    """Hands on what a reader's token allows, and hides in answers what such a token does not show.

    Args:
        store: Whatever it allows by itself.
    """

    def __init__(self, store: LightningStore) -> None:
        self._store = store

    @property
    def target(self) -> LightningStore:
        return self._store

    async def call(self, operation: str, arguments: dict[str, Any]) -> Any:
        """Ask the store.

        Raises:
            NotAllowedError: It would change something, or the store refuses the token.
            DamagedRecordError: A record cannot be read, and is not to be passed over.
        """
        if operation not in ALLOWED["reader"] and operation != "close":
            raise NotAllowedError(f"a page over a store may not {operation}")
        damage = DAMAGE.get()
        try:
            return await self._ask(operation, arguments)
        except DamagedRecordError:
            if damage is None or operation not in _PAGED:
                raise
            if operation == "query_spans" and not damage.spans:
                raise
        return await self._spare(operation, arguments, damage)

    async def _ask(self, operation: str, arguments: dict[str, Any]) -> Any:
        try:
            return visible(await super().call(operation, arguments))
        except ConfigError as error:  # of a server: the token is not one of its own
            raise NotAllowedError(str(error)) from error
        except AglError:
            raise
        except ValueError as error:  # it holds what no record of its kind can
            why = " ".join(str(error).split())[:300]
            what = operation.removeprefix("query_").replace("_", " ")
            raise DamagedRecordError(f"one of the store's {what} cannot be read: {why}") from error

    async def _spare(
        self, operation: str, arguments: dict[str, Any], damage: Damage
    ) -> PaginatedResult[Any]:
        """The answer of a query without those records that are damaged; what they are is noted."""
        limit, begin = arguments.get("limit", -1), arguments.get("offset", 0)
        items: list[Any] = []
        at, size, total, damaged = begin, PAGE, 0, 0
        while limit == -1 or at < begin + limit:
            size = size if limit == -1 else min(size, begin + limit - at)
            try:
                page = await self._ask(operation, {**arguments, "limit": size, "offset": at})
            except DamagedRecordError as error:
                if size > 1:
                    size = max(1, size // 8)
                    continue
                damaged += 1
                if damaged > MOST_DAMAGED:
                    raise
                damage.problems[str(error)] = None
                at, size = at + 1, PAGE
                continue
            items += page
            at, total = at + len(page), page.total
            if len(page) < size:
                break
        total = max(total, len(items) + damaged)
        make: Callable[..., Any] = PaginatedResult[Any].model_construct
        return make(items=items, limit=limit, offset=begin, total=total)
