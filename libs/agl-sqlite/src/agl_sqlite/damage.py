"""Queries of a store in which one damaged record hides no other."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from agl.errors import DamagedRecordError
from agl.store.queries import PAGE, SORTABLE
from agl.types import PaginatedResult

MOST_DAMAGED: Final = 50
"""Records that one query leaves out; a store with more of them is said to be damaged."""
PAGED: Final = {f"query_{kind}" for kind in SORTABLE} - {"query_documents"}
"""Queries whose pages have an offset."""


async def query_undamaged(
    query: Callable[[dict[str, Any]], Awaitable[PaginatedResult[Any]]],
    arguments: dict[str, Any],
    damaged: dict[str, None],
) -> PaginatedResult[Any]:
    """The answer of a query without those records that are damaged.

    Args:
        query: Asks the store; it raises a ``DamagedRecordError`` if a page has such a record.
        arguments: Of the query.
        damaged: Gets what is said of each, in their order.

    Raises:
        DamagedRecordError: There are more than ``MOST_DAMAGED``.
    """
    limit, begin = arguments.get("limit", -1), arguments.get("offset", 0)
    items: list[Any] = []
    at, size, total, left_out = begin, PAGE, 0, 0
    while limit == -1 or at < begin + limit:
        size = size if limit == -1 else min(size, begin + limit - at)
        try:
            page = await query({**arguments, "limit": size, "offset": at})
        except DamagedRecordError as error:
            if size > 1:
                size = max(1, size // 8)
                continue
            left_out += 1
            if left_out > MOST_DAMAGED:
                raise
            damaged[str(error)] = None
            at, size = at + 1, PAGE
            continue
        items += page
        at, total = at + len(page), page.total
        if len(page) < size:
            break
    total = max(total, len(items) + left_out)
    make: Callable[..., Any] = PaginatedResult[Any].model_construct
    return make(items=items, limit=limit, offset=begin, total=total)
