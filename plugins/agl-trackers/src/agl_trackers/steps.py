"""Some rollouts of a step, for a table of it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agl.store.rules import ENDED
from agl.types import AttemptedRollout, Rollout

if TYPE_CHECKING:
    from agl.store.base import LightningStore

ASKED = 256
"""Rollouts that are asked for at once."""
MOST_PAGES = 16
"""Pages that are looked through, the newest first."""


async def ended_rollouts(
    store: "LightningStore", run_id: str, step: int | None, most: int, since: float = 0.0
) -> list[AttemptedRollout]:
    """Rollouts of a step that have ended, evenly from all of it, as they were queued.

    Args:
        store: Where they are.
        run_id: Of the run; rollouts that say no run are taken as well.
        step: Which; None for a run without steps, of which the newest are taken.
        most: At most so many.
        since: A rollout that says no step is taken where it ended after this time.
    """
    found: list[AttemptedRollout] = []
    after: str | None = None
    for _ in range(1 if step is None else MOST_PAGES):
        page: Sequence[Rollout] = await store.query_rollouts(
            status_in=sorted(ENDED), limit=ASKED, sort_order="desc", after=after
        )
        earlier = False
        for one in page:
            about = one.metadata or {}
            if about.get("run", run_id) != run_id or not isinstance(one, AttemptedRollout):
                continue
            of = about.get("step")
            is_of_it = (one.end_time or 0.0) >= since if of is None else of == step
            if step is None or is_of_it:
                found.append(one)
            earlier |= isinstance(of, int) and step is not None and of < step
        if earlier or len(page) < ASKED:
            break
        after = page[-1].rollout_id
    found.reverse()
    if len(found) <= most:
        return found
    return [found[number * len(found) // most] for number in range(most)]
