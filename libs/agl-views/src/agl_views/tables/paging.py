"""The next page of rollouts of any store, also of one that knows no keys of pages."""

from typing import Any

from agl.errors import NotSupportedError
from agl.store.base import LightningStore
from agl.store.queries import each_record
from agl.types import PaginatedResult, Rollout


async def page_behind(
    store: LightningStore, last: str | None, number: int | None, *, limit: int, **asked: Any
) -> PaginatedResult[Rollout]:
    """The rollouts behind one, as ``query_rollouts`` has them.

    Args:
        store: One of 0.3, behind its server, is asked by number; with the newest first, what is
            queued meanwhile shifts its pages.
        last: The last one that was read; None begins.
        number: So many were read; None where nobody has counted them.
        limit: At most so many.
        asked: What else ``query_rollouts`` is asked.
    """
    key = {} if last is None else {"after": last}
    try:
        return await store.query_rollouts(**key, limit=limit, **asked)
    except NotSupportedError:
        if last is None:
            raise
    if number is None:
        number = 0
        async for one in each_record(store.query_rollouts, **asked):
            number += 1
            if one.rollout_id == last:
                break
    return await store.query_rollouts(offset=number, limit=limit, **asked)
