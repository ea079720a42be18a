"""The accounts of a store: those of a run's newest steps, and then only what has come.

A large store has a million of them, and a picture shows the last steps. One request reads some; a
page that is open asks for the rest, as ``DataSource.reading`` changes the state that it waits on.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from agl_records.ledger.documents import LOST, count_parts, query_parts
from agl_records.ledger.tables import Accounts
from agl_records.types import LedgerPart
from agl_ui.data_sources import DataSource

FEW = 2_000
"""Accounts of a small store, which are read all at once."""
NEWEST = 500
"""Rollouts among which those of a run's last step are looked for, where no metrics name it."""
AT_ONCE = 500
"""Of earlier steps, those that one request reads; the last step of these whole."""
MOST = 20_000
"""So many are read back; of a run with more, the newest steps, but at least ``BARS``."""
BARS = 60
"""Steps that the picture has."""
MOST_STEP = 10_000_000
"""No run has more."""


@dataclass
class CachedAccounts(Accounts):
    """What was read so far."""

    credits: dict[tuple[str, int], tuple[float, int]] = field(
        default_factory=dict[tuple[str, int], tuple[float, int]]
    )
    """(run, step) -> sum of the mean credits of rollouts, and how many have one."""
    sizes: Counter[tuple[str, int | None]] = field(default_factory=Counter[tuple[str, int | None]])
    """(run, step) -> accounts that were read."""
    num_stored: int = 0
    """Accounts that the store has."""
    back: dict[str, int] = field(default_factory=dict[str, int])
    """Run -> the step that is to be read next, going back; -1 at the end."""
    starts: int = 0
    """Of all runs: a new one may change accounts that were read."""
    marked: list[Any] = field(default_factory=list[Any])
    """When the runs marked accounts as lost: some time after a start, when the run has found where
    it goes on."""
    keys: set[tuple[str | None, ...]] = field(default_factory=set[tuple[str | None, ...]])
    """Of the accounts that were read, each of which counts once."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def num_read(self) -> int:
        """Accounts that were read."""
        return len(self.keys)

    def is_read(self, run: str) -> bool:
        """Whether all that is shown of a run is read."""
        return self.num_read >= self.num_stored or self.back.get(run) == -1

    def rewards(self, run: str) -> dict[int, float | None]:
        """Step -> mean credit of its rollouts."""
        return {
            step: total / number
            for (of, step), (total, number) in sorted(self.credits.items())
            if of in (run, "") and number
        }

    def add(self, part: LedgerPart) -> None:
        key = (part.rollout_id, part.run, part.algorithm, str(part.step))
        if key in self.keys:
            return
        self.keys.add(key)
        self.sizes[part.run or "", part.step] += 1
        super().add(part)
        items = (*part.trained, *part.excluded)
        given = [one.credit.reward for one in items if one.credit and one.credit.reward is not None]
        if given and not part.lost and part.step is not None and part.mode in (None, "train"):
            of = (part.run or "", part.step)
            total, number = self.credits.get(of, (0.0, 0))
            self.credits[of] = total + sum(given) / len(given), number + 1

    def steps_of(self, run: str) -> list[int]:
        """The steps that accounts of a run are of, as far as they are read."""
        return [step for of, step in self.sizes if of == run and step is not None]


async def accounts_of(source: DataSource, run: str, last_step: int | None) -> CachedAccounts:
    """What is known of a store's accounts, after reading on.

    Args:
        source: The store.
        run: Whose steps are read.
        last_step: Of it, as far as its metrics say; None where they do not.
    """
    known: CachedAccounts = source.memory.setdefault("accounts", CachedAccounts())
    if last_step is not None and not 0 <= last_step < MOST_STEP:
        last_step = None  # of metrics that are odd
    async with known.lock:
        num_read = known.num_read
        runs = await source.runs()
        starts = sum(len(one.generations) for one in runs)
        total = await count_parts(source.store)
        marked = [one.body for one in await source.store.query_documents(LOST)] if total else []
        if (starts, marked) != (known.starts, known.marked) or total < known.num_stored:
            known.__init__(starts=starts, marked=marked, lock=known.lock)
        is_new, known.num_stored = total != known.num_stored, total
        if total <= FEW:
            for part in await query_parts(source.store) if is_new else ():
                known.add(part)
        else:
            if run not in known.back:
                known.back[run] = await _last_step(source, known, run, last_step)
            if is_new:
                await _read_new(source, known, run, last_step)
            await _read_back(source, known, run)
            source.reading += known.num_read != num_read
    return known


async def _last_step(
    source: DataSource, known: CachedAccounts, run: str, last_step: int | None
) -> int:
    """The last step of a run; -1 where it has none, and then the newest accounts are read."""
    if last_step is not None and await _size(source, run, last_step):
        return last_step
    newest = await source.store.query_rollouts(sort_order="desc", limit=NEWEST)
    abouts = [one.metadata or {} for one in newest]
    steps = [one["step"] for one in abouts if one.get("run") == run and "step" in one]
    if not steps:
        ids = [one.rollout_id for one in newest]
        for part in await query_parts(source.store, rollout_id_in=ids):
            known.add(part)
    found = [*known.steps_of(run), *steps]
    return max(found) if found else -1 if last_step is None else last_step


async def _read_new(
    source: DataSource, known: CachedAccounts, run: str, last_step: int | None
) -> None:
    """The last step that was read may have been under way, and others come after it."""
    if not (steps := known.steps_of(run)):
        return
    step = max(steps)
    last = min(last_step or 0, step + AT_ONCE)  # what metrics say may be odd
    while (size := await _size(source, run, step)) or step <= last:
        if size != known.sizes[run, step]:
            await _read(source, known, run, step)
        step += 1


async def _read_back(source: DataSource, known: CachedAccounts, run: str) -> None:
    """Further steps, the newest of those that are left first."""
    left = AT_ONCE
    while left > 0 and (step := known.back[run]) >= 0:
        if known.num_read >= MOST and len(known.steps_of(run)) >= BARS:
            known.back[run] = -1
            return
        left -= await _read(source, known, run, step) + 1  # asking costs, too
        known.back[run] -= 1


async def _size(source: DataSource, run: str, step: int) -> int:
    return await count_parts(source.store, run=run, step=step)


async def _read(source: DataSource, known: CachedAccounts, run: str, step: int) -> int:
    parts = await query_parts(source.store, run=run, step=step)
    for part in parts:
        known.add(part)
    return len(parts)
