"""The accounts of a store, summed up per step."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from agl.cli.shared import note, table_text
from agl.store.base import LightningStore
from agl_records.ledger.documents import count_parts, each_part
from agl_records.ledger.ledger import Ledger, load_parts
from agl_records.types import LedgerError, LedgerPart
from agl_runs.store import query_runs

_GOOD_BINS = {"rollouts": "trained", "calls": "trained", "rewards": "used"}
"""What is counted, and the name of its good bin."""
_LAST_STEPS = 10
"""So many stand at the end of a run; ``agl ledger`` has all."""
MOST_ACCOUNTS = 1_000
"""Of a store with more, only the newest steps are read, unless all is asked for."""
_NEWEST_ROLLOUTS = 500
"""Whose steps these are."""
_COLUMNS = ["step", "mode", "rollouts", "trained", "calls", "calls trained", "excluded", "because"]


class Sums(Counter[tuple[str, str]]):
    """(kind, bin) -> how many; a bin is "total", the good one, or a reason of exclusion."""

    @classmethod
    def of(cls, part: LedgerPart) -> "Sums":
        """Count the account of a rollout.

        Raises:
            LedgerError: It cannot be read, or does not balance.
        """
        if part.problem:
            raise LedgerError(f"its account cannot be read: {part.problem}")
        ledger = Ledger.of_parts([part])
        ledger.check()
        summary = ledger.summary()
        # Calls stand at the top of a summary, the other two under their names.
        by_kind = {**summary, "calls": {**summary, "total": summary["calls"]}}
        sums = cls()
        for kind, good in _GOOD_BINS.items():
            for name in ("total", good):
                sums[kind, name] = by_kind[kind][name]
            sums.update({(kind, reason): n for reason, n in by_kind[kind]["excluded"].items()})
        return sums

    def excluded(self, kind: str) -> Counter[str]:
        """Reason -> how many."""
        good = ("total", _GOOD_BINS[kind])
        both = self.items()
        return Counter({name: n for (of, name), n in both if of == kind and name not in good})

    def reasons(self, kind: str) -> str:
        """Each with its number, the most frequent first; "" for none."""
        return ", ".join(f"{n} {reason}" for reason, n in self.excluded(kind).most_common())

    def as_json(self) -> dict[str, Any]:
        """Kind -> total, good bin, and the excluded per reason."""
        return {
            kind: {
                "total": self[kind, "total"],
                good: self[kind, good],
                "excluded": dict(self.excluded(kind)),
            }
            for kind, good in _GOOD_BINS.items()
        }

    def cells(self) -> list[object]:
        """Of a line of a table."""
        # A rollout may have a reason that none of its calls has, or no call at all.
        rollouts = self.reasons("rollouts")
        because = [self.reasons("calls"), f"rollouts: {rollouts}" if rollouts else ""]
        kinds = ("rollouts", "calls")
        counts = [self[kind, name] for kind in kinds for name in ("total", "trained")]
        return [*counts, self.excluded("calls").total(), "; ".join(filter(None, because))]


async def in_no_account(
    store: LightningStore, run: str | None, number: int, lost: bool | None = None
) -> str:
    """Of which steps so many rollouts of a run are that no account knows, as "64 of step 3".

    ``lost`` is as in ``load_parts``. Only the newest are looked at.
    """
    newest = await store.query_rollouts(run=run, sort_order="desc", limit=MOST_ACCOUNTS)
    known = {part.rollout_id for part in await load_parts(store, newest, run=run, lost=lost)}
    steps = [(one.metadata or {}).get("step") for one in newest if one.rollout_id not in known]
    counts = Counter("no step" if step is None else f"step {step}" for step in steps)
    counts["earlier rollouts"] = number - counts.total()
    return ", ".join(f"{n:,} of {step}" for step, n in counts.items() if n > 0)


Key = tuple[str, str, int | None, str]
"""(run, algorithm, step, mode)."""


@dataclass
class Accounts:
    """What a store says about its rollouts."""

    steps: dict[Key, Sums] = field(default_factory=dict[Key, Sums])
    parts: list[LedgerPart] = field(default_factory=lambda: [])
    """Those of the step that was asked for; none when all were."""
    without: int = 0
    """Rollouts that no account knows."""
    steps_without: str = ""
    """Of which steps these are."""
    lost: int = 0
    """Accounts that a run went back behind; they are in no sum."""
    problems: list[str] = field(default_factory=list[str])
    """Accounts that cannot be read, or do not balance; they are in no sum."""
    left_out: int = 0
    """Accounts of earlier steps, which were not read."""

    @classmethod
    async def read(
        cls, store: LightningStore, step: int | None = None, run: str | None = None
    ) -> Self:
        """Read all accounts of a store, page by page.

        Args:
            store: Where they are.
            step: Only this one, and keep its parts; then nothing is said of rollouts in none.
            run: Only of this run.
        """
        accounts, known = cls(), set[str]()
        runs: Sequence[str | None] = [run]
        if run is None and step is not None:  # accounts of a step are found by run
            ids = [one.run_id for one in await query_runs(store)]
            counted = sum([await count_parts(store, run=one) for one in ids])
            runs = ids if counted == await count_parts(store) else [None]  # else of any run
        for one in runs:
            async for part in each_part(store, run=one, step=step):
                known.add(part.rollout_id)
                accounts.add(part)
                if step is not None and not part.lost and not part.problem:
                    accounts.parts.append(part)
        if step is None:
            accounts.without = (await store.query_rollouts(run=run, limit=1)).total - len(known)
            if accounts.without > 0:
                accounts.steps_without = await in_no_account(store, run, accounts.without)
        return accounts

    @classmethod
    async def read_newest(cls, store: LightningStore, run: str | None = None) -> Self:
        """Read the accounts of a store, or where there are many, of its newest steps, whole.

        ``run`` is as in ``read``.
        """
        total = await count_parts(store, run=run)
        if total <= MOST_ACCOUNTS:
            return await cls.read(store, run=run)
        newest = await store.query_rollouts(sort_order="desc", limit=_NEWEST_ROLLOUTS)
        abouts = [one.metadata or {} for one in newest]
        steps = [(one["run"], one["step"]) for one in abouts if {"run", "step"} <= {*one}]
        found: list[LedgerPart] = []
        for of, step in dict.fromkeys(steps):
            if run not in (None, of):
                continue
            of_step = await load_parts(store, run=of, step=step, lost=None)
            if found and len(found) + len(of_step) > MOST_ACCOUNTS:
                break
            found += of_step
        if not found:  # these rollouts are of no step
            found = await load_parts(store, newest, run=run, lost=None)
        accounts = cls(left_out=total - len(found))
        for part in found:
            accounts.add(part)
        return accounts

    def add(self, part: LedgerPart) -> None:
        """Count one."""
        if part.lost:
            self.lost += 1
            return
        try:
            sums = Sums.of(part)
        except LedgerError as error:
            self.problems.append(f"rollout {part.rollout_id!r}, step {part.step}: {error}")
            return
        key = part.run or "", part.algorithm or "", part.step, part.mode or ""
        self.steps.setdefault(key, Sums()).update(sums)

    @property
    def total(self) -> Sums:
        """Over all steps."""
        whole = Sums()
        for sums in self.steps.values():
            whole.update(sums)
        return whole

    def text(self, last: int | None = None) -> str:
        """A table with a line per step and mode, and the total below.

        ``last`` leaves out earlier steps, but for what came before the first one.

        The run is named where there are several.
        """
        runs = list(dict.fromkeys(run for run, *_ in self.steps))

        def order(item: tuple[Key, Sums]) -> tuple[object, ...]:
            (run, algorithm, step, mode), _ = item
            return (runs.index(run), step or 0, algorithm, mode)

        steps = sorted(self.steps.items(), key=order)
        shown = list(dict.fromkeys((run, step) for (run, _, step, _), _ in steps if step))
        shown = shown[-(last or 0) :]
        rows = [
            [run, "" if step is None else step, mode, *sums.cells()]
            for (run, _, step, mode), sums in steps
            if not step or (run, step) in shown
        ]
        rows.append(["", "these" if self.left_out else "total", "", *self.total.cells()])
        first = 0 if len(runs) > 1 else 1
        cells = [row[first:] for row in rows]
        return table_text(["run", *_COLUMNS][first:], cells)

    def ending(self) -> str | None:
        """What ``agl run`` says of the ledger at its end: the last steps; None where there is none.

        Accounts that are in no sum belong to earlier steps or starts; ``agl ledger`` tells of them.
        """
        if not self.steps and not self.problems:
            return None
        for problem in self.problems:
            note(problem)
        steps = {(run, step) for run, _, step, _ in self.steps if step}
        # Steps whose accounts were not read count by the number of the last one.
        number = max([len(steps), *(step for _, step in steps)])
        cut = f"the last {_LAST_STEPS} of {number} steps" if number > _LAST_STEPS else ""
        title = f"ledger       {cut}".rstrip()
        return f"{title}\n{self.text(last=_LAST_STEPS)}"
