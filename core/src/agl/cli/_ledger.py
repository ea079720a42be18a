"""The accounts of a store, summed up per step."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl.store.base import LightningStore
    from agl.types import LedgerPart

Key = tuple[str, int | None, str]
"""(algorithm, step, mode)."""
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

    Raises:
        LedgerError: One does not balance.
    """
    from agl.commandline import each_rollout
    from agl.ledger import load_parts

    accounts = Accounts()
    async for rollout in each_rollout(store):
        parts = await load_parts(store, [rollout])
        accounts.without += not parts
        for part in parts:
            if step is not None and part.step != step:
                continue
            if step is not None:
                accounts.parts.append(part)
            key = (part.algorithm or "", part.step, part.mode or "")
            accounts.steps.setdefault(key, Sums()).add(part)
    return accounts


COLUMNS = ["step", "mode", "rollouts", "trained", "calls", "trained", "excluded", "because"]


def step_rows(accounts: Accounts, last: int | None = None) -> list[list[object]]:
    """A table row per step, the total below; ``last`` leaves out earlier steps."""
    steps = sorted(accounts.steps.items(), key=lambda item: (item[0][1] or 0, item[0]))
    shown = steps if last is None else steps[-last:]
    rows = [_row("" if key[1] is None else key[1], key[2], sums) for key, sums in shown]
    return [*rows, _row("total", "", accounts.total)]


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


def without_account(accounts: Accounts) -> str:
    """What to say about rollouts that no account knows."""
    return (
        f"{accounts.without} rollouts are in no account: their step did not end, or their "
        "algorithm keeps no ledger"
    )
