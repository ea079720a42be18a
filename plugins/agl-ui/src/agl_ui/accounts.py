"""The accounts of a run, those of its newest steps first.

A large store has a million accounts, and a picture shows the last steps. One request reads some; a
page that is open asks for the rest, as ``DataSource.reading`` changes the state that it waits on. A
step that was read is kept, and read again once it has more accounts.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean

from agl_records.ledger.documents import LOST, count_parts
from agl_records.ledger.ledger import load_parts
from agl_records.ledger.tables import Accounts
from agl_records.types import LedgerPart
from agl_ui.data_sources import DataSource

FEW = 2_000
"""Accounts of a small store, which are read all at once."""
NEWEST = 500
"""Rollouts among which those of a run's last step are looked for, where no metrics name it."""
AT_ONCE = 500
"""Accounts that one request reads of a large store; the last step of these whole."""
BARS = 60
"""Steps that the picture has."""
LOOKED_AT = 10 * BARS
"""Steps among which those with accounts are looked for."""


@dataclass
class RunAccounts(Accounts):
    """What was read."""

    credits: dict[tuple[str, int], list[float]] = field(
        default_factory=dict[tuple[str, int], list[float]]
    )
    """(run, step) -> the mean credit of each rollout that has one."""
    num_read: int = 0
    """Accounts that were read."""
    num_stored: int = 0
    """Accounts that the store has."""
    is_read: bool = True
    """Whether all that is shown of the run is read."""

    def rewards(self, run: str) -> dict[int, float | None]:
        """Step -> mean credit of its rollouts."""
        found = sorted(self.credits.items())
        return {step: fmean(given) for (of, step), given in found if of in (run, "")}

    def add(self, part: LedgerPart) -> None:
        super().add(part)
        self.num_read += 1
        if part.lost or part.step is None or part.mode not in (None, "train"):
            return
        if (given := part.mean_credit) is not None:
            self.credits.setdefault((part.run or "", part.step), []).append(given)

    def include(self, other: "RunAccounts") -> None:
        """Count those of another step."""
        self.steps |= other.steps
        self.problems += other.problems
        self.lost += other.lost
        self.credits |= other.credits
        self.num_read += other.num_read


async def accounts_of(source: DataSource, run: str, last_step: int | None) -> RunAccounts:
    """What is known of a run's accounts, after reading on; of a small store, of all its accounts.

    Args:
        source: The store.
        run: Whose steps are read.
        last_step: Of it, as far as its metrics say; None where they do not.
    """
    store = source.store
    # A start may change accounts that were read, and marks them some time later, when the run has
    # found where it goes on.
    starts = sum(len(one.generations) for one in await source.runs())
    total = await count_parts(store)
    marked = [one.body for one in await store.query_documents(LOST)] if total else []
    known = source.memory.get("accounts")
    if known is None or known[0] != (starts, marked):
        known = source.memory["accounts"] = (starts, marked), {}
    kept: dict[tuple[str, int] | None, RunAccounts] = known[1]
    if total <= FEW:
        if None not in kept or kept[None].num_stored != total:
            kept[None] = _summed(await load_parts(store, lost=None), total)
        return kept[None]
    last = await _last_step(source, run, last_step)
    if last is None:
        newest = await store.query_rollouts(sort_order="desc", limit=NEWEST)
        ids = [one.rollout_id for one in newest]
        return _summed(await load_parts(store, ids, lost=None), total)
    found, left = RunAccounts(num_stored=total), AT_ONCE
    for step in range(last, max(last - LOOKED_AT, -1), -1):
        size = await count_parts(store, run=run, step=step)
        if (run, step) not in kept or kept[run, step].num_read != size:
            if left <= 0:
                found.is_read = False
                source.reading += 1
                break
            kept[run, step] = _summed(await load_parts(store, run=run, step=step, lost=None), size)
            left -= size + 1  # asking costs, too
        found.include(kept[run, step])
        if len({step for _, _, step, _ in found.steps}) >= BARS:
            break
    return found


def _summed(parts: Iterable[LedgerPart], num_stored: int) -> RunAccounts:
    found = RunAccounts(num_stored=num_stored)
    for part in parts:
        found.add(part)
    return found


async def _last_step(source: DataSource, run: str, last_step: int | None) -> int | None:
    """The last step of a run that has accounts; None where nothing says of any."""
    store = source.store
    if last_step is None or not await count_parts(store, run=run, step=last_step):
        newest = await store.query_rollouts(sort_order="desc", limit=NEWEST)
        abouts = [one.metadata or {} for one in newest]
        steps = [one.get("step") for one in abouts if one.get("run") == run]
        last_step = max((one for one in steps if isinstance(one, int)), default=None)
    # Metrics come at the end of a step, and accounts before.
    while last_step is not None and await count_parts(store, run=run, step=last_step + 1):
        last_step += 1
    return last_step
