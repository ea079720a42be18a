"""The accounts of a store, read once and then only what has come."""

import asyncio
from dataclasses import dataclass, field

from agl.errors import LedgerError
from agl.types import LedgerPart
from agl_learning.ledger_tables import Key, Sums, sums_of
from agl_ui.places import Place

PAGE = 500
MOST_AT_ONCE = 20_000
"""Accounts that one request reads; a longer ledger is read on by the next ones."""


@dataclass
class Known:
    """What was read so far."""

    steps: dict[Key, Sums] = field(default_factory=dict[Key, Sums])
    credits: dict[tuple[str, int], tuple[float, int]] = field(
        default_factory=dict[tuple[str, int], tuple[float, int]]
    )
    """(run, step) -> sum of the mean credits of rollouts, and how many have one."""
    num_read: int = 0
    total: int = 0
    lost: int = 0
    """Accounts that a run went back behind; in no sum."""
    problems: list[str] = field(default_factory=list[str])
    starts: int = 0
    """Of all runs: a new one may change accounts that were read."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left to read."""
        return self.num_read >= self.total

    def rewards(self, run: str) -> dict[int, float | None]:
        """Step -> mean credit of its rollouts."""
        return {
            step: total / number
            for (of, step), (total, number) in sorted(self.credits.items())
            if of in (run, "") and number
        }

    def add(self, part: LedgerPart) -> None:
        """Count one account."""
        if part.lost:
            self.lost += 1
            return
        try:
            sums = sums_of(part)
        except LedgerError as error:
            self.problems.append(f"rollout {part.rollout_id!r}, step {part.step}: {error}")
            return
        key = (part.run or "", part.algorithm or "", part.step, part.mode or "")
        self.steps.setdefault(key, Sums()).update(sums)
        items = (*part.trained, *part.excluded)
        given = [one.credit.reward for one in items if one.credit and one.credit.reward is not None]
        if given and part.step is not None and part.mode in (None, "train"):
            of = (part.run or "", part.step)
            total, number = self.credits.get(of, (0.0, 0))
            self.credits[of] = total + sum(given) / len(given), number + 1


async def accounts_of(place: Place) -> Known:
    """What is known of a store's accounts, after reading what has come since the last time."""
    known: Known = place.memory.setdefault("accounts", Known())
    async with known.lock:
        starts = sum(len(run.generations) for run in await place.runs())
        first = await place.store.query_ledger_parts(limit=1)
        if starts != known.starts or first.total < known.num_read:
            lock = known.lock
            known.__init__(starts=starts, lock=lock)
        known.total = first.total
        until = known.num_read + MOST_AT_ONCE
        while known.num_read < min(known.total, until):
            page = await place.store.query_ledger_parts(limit=PAGE, offset=known.num_read)
            if not page:
                break
            for part in page:
                known.add(part)
            known.num_read += len(page)
    return known
