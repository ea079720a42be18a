"""The prompt runs of a store, read once, and then only what has come.

One request reads some of a large store; a page that is open asks for the rest, as
``DataSource.reading`` changes the state that it waits on.
"""

import asyncio
from dataclasses import dataclass, field

from agl.errors import AglError, NotSupportedError
from agl.types import PromptTemplate
from agl_ui.data_sources import DataSource
from agl_views.runs.prompt_runs import PromptRuns

PAGE, MOST_AT_ONCE = 500, 10_000
"""Rollouts that are asked for at a time, and that one request reads."""
SNAPSHOTS = 200
"""Resources among which there is a prompt, where any run of the store optimises one."""


@dataclass
class CachedPromptRuns(PromptRuns):
    """What was read of one store so far."""

    num_read: int = 0
    total: int = 0
    last: str | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


async def prompt_runs(source: DataSource) -> CachedPromptRuns:
    """The prompt runs of a store, as far as it was read; see ``total`` for the rest."""
    known: CachedPromptRuns = source.memory.setdefault("prompts", CachedPromptRuns())
    async with known.lock:
        snapshots = await source.store.query_resources(limit=SNAPSHOTS)
        given = (one for each in snapshots for one in each.resources.values())
        if not any(isinstance(one, PromptTemplate) for one in given):
            return known
        first = await source.store.query_rollouts(limit=1)
        if first.total < known.num_read:  # another file in its place
            known.__init__(lock=known.lock)
        known.total = first.total
        await known.take_entries(source.store)
        waiting = list(known.open)
        for at in range(0, len(waiting), PAGE):
            some = await source.store.query_rollouts(rollout_id_in=waiting[at : at + PAGE])
            known.take(some)
        until = (before := known.num_read) + MOST_AT_ONCE
        while known.num_read < min(known.total, until):
            page = await source.store.query_rollouts(after=known.last, limit=PAGE)
            if not page:
                break
            known.take(page)
            known.num_read += len(page)
            known.last = page[-1].rollout_id
        source.reading += before < known.num_read < known.total
    return known


async def has_prompts(source: DataSource) -> bool:
    """Whether a run of the store may have optimised prompts."""
    try:
        return bool(await source.store.query_documents(PromptRuns.ENTRIES, limit=1))
    except NotSupportedError:  # a store of 0.3
        return False
    except AglError:  # which the page itself says
        return True
