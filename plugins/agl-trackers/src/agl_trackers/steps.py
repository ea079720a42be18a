"""Which rollouts are those of a step, found without reading any twice."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agl.types import AttemptedRollout, Rollout

if TYPE_CHECKING:
    from agl.store.base import LightningStore

ENDED = ("succeeded", "failed", "cancelled")
ASKED = 256
"""Rollouts that are asked for at once."""


class Steps:
    """Reads on in the store as it is asked for one step after the other, and keeps ids only.

    Rollouts of later steps, which some algorithms queue ahead, are kept for these. Those that say
    no step count for the step that is asked for next, those that say no run for this one.

    Args:
        store: Where they are.
        run_id: Of the run.
    """

    def __init__(self, store: "LightningStore", run_id: str) -> None:
        self._store, self._run_id = store, run_id
        self._last: str | None = None
        """The newest that was seen; those behind it are new."""
        self._of: dict[int | None, list[str]] = {}

    async def start(self, *, goes_on: bool = False) -> None:
        """Pass over what the store has.

        Args:
            goes_on: The step under way may have rollouts of the run's earlier start: the newest
                ones are not passed over.
        """
        number = ASKED if goes_on else 1
        newest = await self._store.query_rollouts(limit=number, sort_order="desc")
        self._last = newest[-1].rollout_id if len(newest) == number else None
        self._of.clear()

    async def some(self, step: int, most: int) -> list[AttemptedRollout]:
        """Rollouts of a step that have ended, evenly from all of it, as they were queued.

        Args:
            step: Which; it, and those before it, cannot be asked for again.
            most: At most so many.
        """
        await self._read_on()
        ids = self._of.pop(None, []) + self._of.pop(step, [])
        self._of = {of: kept for of, kept in self._of.items() if of is None or of > step}
        order = _evenly(ids, most)
        found: list[AttemptedRollout] = []
        for begin in range(0, len(order), ASKED):
            asked = order[begin : begin + ASKED]
            page = await self._store.query_rollouts(rollout_id_in=asked, status_in=ENDED)
            found += _as_asked(page, asked)
            if len(found) >= most:
                break
        place = {rollout_id: number for number, rollout_id in enumerate(ids)}
        return sorted(found[:most], key=lambda one: place[one.rollout_id])

    async def _read_on(self) -> None:
        while True:
            new = await self._store.query_rollouts(after=self._last, limit=ASKED)
            for rollout in new:
                self._last = rollout.rollout_id
                about = rollout.metadata or {}
                if about.get("run", self._run_id) == self._run_id:
                    step = about.get("step")
                    of = step if isinstance(step, int) else None
                    self._of.setdefault(of, []).append(rollout.rollout_id)
            if len(new) < ASKED:
                return


async def newest(store: "LightningStore", run_id: str, most: int) -> list[AttemptedRollout]:
    """Of a run without steps: some of its newest rollouts that have ended, as they were queued."""
    page = await store.query_rollouts(status_in=ENDED, limit=ASKED, sort_order="desc")
    found = {
        one.rollout_id: one
        for one in reversed(page)
        if (one.metadata or {}).get("run", run_id) == run_id and isinstance(one, AttemptedRollout)
    }
    chosen = set(_evenly(list(found), most)[:most])
    return [one for rollout_id, one in found.items() if rollout_id in chosen]


def _evenly(ids: Sequence[str], most: int) -> list[str]:
    """All of them, at first ``most`` that are spread over all, then the others."""
    if len(ids) <= most:
        return list(ids)
    chosen = [ids[number * len(ids) // most] for number in range(most)]
    taken = set(chosen)
    return chosen + [one for one in ids if one not in taken]


def _as_asked(page: Sequence[Rollout], asked: Sequence[str]) -> list[AttemptedRollout]:
    by_id = {one.rollout_id: one for one in page if isinstance(one, AttemptedRollout)}
    return [by_id[one] for one in asked if one in by_id]
