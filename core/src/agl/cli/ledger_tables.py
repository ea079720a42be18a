"""The accounts of a store, summed up per step."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl.store.base import LightningStore
    from agl.types import LedgerPart

Key = tuple[str, str, int | None, str]
"""(run, algorithm, step, mode)."""
KINDS = (("rollouts", "trained"), ("calls", "trained"), ("rewards", "used"))
"""What is counted, and the name of its good bin."""


@dataclass
class Sums:
    """Totals and bins of one step."""

    counts: Counter[str] = field(default_factory=Counter[str])
    excluded: dict[str, Counter[str]] = field(
        default_factory=lambda: {kind: Counter[str]() for kind, _ in KINDS}
    )

    def add(self, part: "LedgerPart") -> None:
        """Add the account of a rollout.

        Raises:
            LedgerError: It does not balance.
        """
        from agl.types import Ledger

        ledger = Ledger.of_parts([part])
        ledger.check()
        summary = ledger.summary()
        # Calls stand at the top of a summary, the other two under their names.
        calls = {"total": summary["calls"], "trained": summary["trained"]}
        summary["calls"] = {**calls, "excluded": summary["excluded"]}
        for kind, good in KINDS:
            self.counts[kind] += summary[kind]["total"]
            self.counts[f"{kind}/{good}"] += summary[kind][good]
            self.excluded[kind].update(summary[kind]["excluded"])

    def update(self, other: "Sums") -> None:
        """Add those of another step."""
        self.counts.update(other.counts)
        for kind, reasons in other.excluded.items():
            self.excluded[kind].update(reasons)

    def as_json(self) -> dict[str, Any]:
        """Kind -> total, good bin, and the excluded per reason."""
        return {
            kind: {
                "total": self.counts[kind],
                good: self.counts[f"{kind}/{good}"],
                "excluded": dict(self.excluded[kind]),
            }
            for kind, good in KINDS
        }


@dataclass
class Accounts:
    """What a store says about its rollouts."""

    steps: dict[Key, Sums] = field(default_factory=dict[Key, Sums])
    parts: "list[LedgerPart]" = field(default_factory=lambda: [])
    """Those of the step that was asked for; none when all were."""
    without: int = 0
    """Rollouts that no account knows."""
    lost: int = 0
    """Accounts that a run went back behind; they are in no sum."""
    problems: list[str] = field(default_factory=list[str])
    """Accounts that cannot be read, or do not balance; they are in no sum."""

    @property
    def total(self) -> Sums:
        """Over all steps."""
        total = Sums()
        for sums in self.steps.values():
            total.update(sums)
        return total


async def read_accounts(store: "LightningStore", step: int | None = None) -> Accounts:
    """Read all accounts of a store, page by page.

    Args:
        store: Where they are.
        step: Only this one, and keep its parts.
    """
    from agl.algorithm.ledger import each_part
    from agl.errors import LedgerError

    accounts = Accounts()
    known: set[str] = set()
    async for part in each_part(store):
        known.add(part.rollout_id)
        if step is not None and part.step != step:
            continue
        if part.lost:
            accounts.lost += 1
            continue
        try:
            _add(accounts, part)
        except LedgerError as error:
            accounts.problems.append(f"rollout {part.rollout_id!r}, step {part.step}: {error}")
        else:
            if step is not None:
                accounts.parts.append(part)
    accounts.without = (await store.statistics()).get("total_rollouts", 0) - len(known)
    return accounts


def _add(accounts: Accounts, part: "LedgerPart") -> None:
    from agl.errors import LedgerError

    if part.problem:
        raise LedgerError(f"its account cannot be read: {part.problem}")
    sums = Sums()
    sums.add(part)  # refuses before anything is counted
    key = (part.run or "", part.algorithm or "", part.step, part.mode or "")
    accounts.steps.setdefault(key, Sums()).update(sums)


COLUMNS = ["step", "mode", "rollouts", "trained", "calls", "trained", "excluded", "because"]


def columns(accounts: Accounts) -> list[str]:
    """Headers of ``step_rows``; the run is named where there are several."""
    return ["run", *COLUMNS] if len(_runs(accounts)) > 1 else COLUMNS


def _runs(accounts: Accounts) -> list[str]:
    return list(dict.fromkeys(key[0] for key in accounts.steps))


def step_rows(accounts: Accounts, last: int | None = None) -> list[list[object]]:
    """A table row per step, the total below; ``last`` leaves out earlier steps."""
    runs = _runs(accounts)
    several = len(runs) > 1

    def order(item: tuple[Key, Sums]) -> tuple[object, ...]:
        (run, algorithm, step, mode), _ = item
        return (runs.index(run), step or 0, algorithm, mode)

    steps = sorted(accounts.steps.items(), key=order)
    shown = steps if last is None else steps[-last:]
    rows = [
        [*([run] if several else []), *_row("" if step is None else step, mode, sums)]
        for (run, _, step, mode), sums in shown
    ]
    return [*rows, [*([""] if several else []), *_row("total", "", accounts.total)]]


def _row(step: object, mode: str, sums: Sums) -> list[object]:
    counts, excluded = sums.counts, sums.excluded["calls"]
    # Rollouts without any call have a reason that no call has.
    lone = sums.excluded["rollouts"]
    lone = {reason: n for reason, n in lone.items() if reason in ("no_calls", "not_run")}
    because = [f"{n} {reason}" for reason, n in excluded.most_common()]
    because += [f"{n} rollouts {reason}" for reason, n in lone.items()]
    return [
        step,
        mode,
        counts["rollouts"],
        counts["rollouts/trained"],
        counts["calls"],
        counts["calls/trained"],
        excluded.total(),
        ", ".join(because),
    ]


def listed(reasons: Iterable[str]) -> str:
    """Reasons with their meaning, a line each."""
    from agl.types import EXCLUSION_REASONS

    return "\n".join(
        f"{reason}: {meaning}"
        for reason, meaning in EXCLUSION_REASONS.items()
        if reason in set(reasons)
    )


def remarks(accounts: Accounts) -> list[str]:
    """What to say about that which is in no sum."""
    said: list[str] = []
    if accounts.without:
        said.append(
            f"{accounts.without} rollouts are in no account: their step did not end, or their "
            "algorithm keeps no ledger"
        )
    if accounts.lost:
        said.append(
            f"{accounts.lost} accounts are in no sum: their run was killed, and went on from a "
            "checkpoint before them"
        )
    return said
