"""The next page of rollouts of any store, also of one that knows no keys of pages."""

from typing import Any

from agl.errors import NotSupportedError
from agl.store.base import LightningStore
from agl.types import PaginatedResult, Rollout


async def page_behind(
    store: LightningStore, last: str | None, number: int, **asked: Any
) -> PaginatedResult[Rollout]:
    """The rollouts behind one, as ``query_rollouts`` has them.

    Args:
        store: One of 0.3, behind its server, is asked by number; with the newest first, what is
            queued meanwhile shifts its pages.
        last: The last one that was read; None begins.
        number: So many were read.
        asked: What else ``query_rollouts`` is asked.
    """
    try:
        return await store.query_rollouts(after=last, **asked)
    except NotSupportedError:
        return await store.query_rollouts(offset=number, **asked)
