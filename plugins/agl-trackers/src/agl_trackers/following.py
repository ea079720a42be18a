"""The rollouts of a run, as they end, from its store."""

from typing import TYPE_CHECKING

from agl.store.rules import ENDED
from agl.types import AttemptedRollout, Rollout

if TYPE_CHECKING:
    from agl.store.base import LightningStore

ASKED = 256
"""Rollouts that are asked for at once."""


class Following:
    """Gives each rollout once, some time after its end; those before the run are not looked at.

    Args:
        store: Where they are.
        run_id: Of the run; rollouts that say no run are taken as well.
    """

    def __init__(self, store: "LightningStore", run_id: str) -> None:
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

    async def ended(self, *, all_open: bool = False) -> list[Rollout]:
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
            given: list[Rollout] = [
                rollout for rollout in done if isinstance(rollout, AttemptedRollout)
            ]
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
