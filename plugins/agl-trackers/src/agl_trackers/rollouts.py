"""Which rollouts of a run have ended: each as it ends, and some of a step for its table."""

from collections.abc import Sequence

from agl.store.base import LightningStore
from agl.store.rules import ENDED
from agl.types import AttemptedRollout, Rollout

ASKED = 256
"""Rollouts that are asked for at once."""
MOST_PAGES = 16
"""Pages that are looked through for a step, the newest first."""


class Following:
    """Gives each rollout once, some time after its end; those before the run are not looked at.

    Args:
        run_id: Of the run; rollouts that say no run are taken as well.
    """

    def __init__(self, store: LightningStore, run_id: str) -> None:
        self._store, self._run_id = store, run_id
        self._last: str | None = None
        """The newest that was seen; those behind it are new."""
        self._open: dict[str, None] = {}
        """Those that had not ended, in the order in which they were queued."""
        self._done: list[Rollout] = []
        """Those that have and were not given, as the store failed in between."""

    async def start(self) -> None:
        """Pass over what the store has."""
        newest = await self._store.query_rollouts(limit=1, sort_order="desc")
        self._last = newest[0].rollout_id if newest else None

    @property
    def num_open(self) -> int:
        """Rollouts that had not ended when they were last looked at."""
        return len(self._open)

    async def ended(self, *, all_open: bool = False) -> list[AttemptedRollout]:
        """Some that have ended since; none where there are none at present.

        Args:
            all_open: Look at all that had not ended, however many: for the last look. Otherwise at
                some, and at others the next time.
        """
        done = self._done
        for _ in range(-(-len(self._open) // ASKED) if all_open else min(1, len(self._open))):
            done.extend(await self._ended_of_open())
            if done:
                break
        while True:
            new = await self._store.query_rollouts(after=self._last, limit=ASKED)
            for rollout in new:
                self._last = rollout.rollout_id
                if (rollout.metadata or {}).get("run", self._run_id) != self._run_id:
                    continue
                if rollout.status in ENDED:
                    done.append(rollout)
                else:
                    self._open[rollout.rollout_id] = None
            given = [one for one in done if isinstance(one, AttemptedRollout)]
            if given or len(new) < ASKED:
                self._done = []
                return given

    async def _ended_of_open(self) -> list[Rollout]:
        asked = list(self._open)[:ASKED]
        done = list(await self._store.query_rollouts(rollout_id_in=asked, status_in=sorted(ENDED)))
        for rollout in done:
            del self._open[rollout.rollout_id]
        if not done:  # those behind them may have
            for rollout_id in asked:
                self._open[rollout_id] = self._open.pop(rollout_id)
        return done


async def ended_rollouts(
    store: LightningStore, run_id: str, step: int | None, most: int, since: float = 0.0
) -> list[AttemptedRollout]:
    """Rollouts of a step that have ended, evenly from all of it, as they were queued.

    Args:
        run_id: Of the run; rollouts that say no run are taken as well.
        step: Which; None for a run without steps, of which the newest are taken.
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
    most = min(most, len(found))
    return [found[number * len(found) // most] for number in range(most)]
