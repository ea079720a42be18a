"""What became of collected rollouts: weighed rows, one bin per model call, sums, reasons."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agl.algorithm.ledger import each_part
from agl.store.queries import PAGE
from agl.types import Advantage, Exclusion, ExclusionReason, Ledger, TrainingRow
from agl_learning.advantages import sibling_advantages

if TYPE_CHECKING:
    from agl.store.base import LightningStore
    from agl_learning.collect import Collected, Ended

_EXCLUDED = "excluded/"
_OF_OTHERS = {"agent_not_selected", "other_model", "judge", "failed_attempt", "superseded_attempt"}
"""Calls that are no question of training."""


@dataclass(frozen=True, eq=False)
class Weighed:
    """A row that is trained, and how much."""

    row: TrainingRow
    """Only the calls with an advantage."""
    advantages: list[Advantage]
    """One per call."""


def usable_rows(collected: "Collected") -> list[tuple["Ended", list[tuple[int, TrainingRow]]]]:
    """What of the rollouts can be trained; the other rows are excluded in the ledger.

    Calls of failed rollouts, of rollouts that infrastructure failed, and calls without a reward are
    excluded.

    Returns:
        Per rollout that has any, its usable rows, each with its position among all its rows.
    """
    found: list[tuple[Ended, list[tuple[int, TrainingRow]]]] = []
    for one in collected.ended:
        usable: list[tuple[int, TrainingRow]] = []
        for number, row in enumerate(one.rows):
            reason = _reason(one, row)
            if reason is None:
                usable.append((number, row))
            else:
                collected.ledger.exclude_row(row, *reason)
        if usable:
            found.append((one, usable))
    return found


def weigh(collected: "Collected", normalise_std: bool) -> list[Weighed]:
    """Rows with their advantages among siblings; every call goes into one bin of the ledger.

    Calls of failed rollouts, without reward, and without advantage are excluded. A failed rollout
    does not count in the mean of its group either.
    """
    groups: dict[int, list[tuple[Ended, list[tuple[int, TrainingRow]]]]] = {}
    for one, numbered in usable_rows(collected):
        groups.setdefault(one.group, []).append((one, numbered))
    weighed: list[Weighed] = []
    for siblings in groups.values():
        rows_G = [[row for _, row in numbered] for _, numbered in siblings]
        advantages_G = sibling_advantages(rows_G, normalise_std)
        for (_, numbered), advantages in zip(siblings, advantages_G, strict=True):
            for (number, row), of_calls in zip(numbered, advantages, strict=True):
                kept = _weigh(row, of_calls, number, collected.ledger)
                if kept is not None:
                    weighed.append(kept)
    return weighed


def _weigh(
    row: TrainingRow, advantages: Sequence[Advantage], number: int, ledger: Ledger
) -> Weighed | None:
    """What of a row is trained; the calls without advantage are excluded."""
    kept = [n for n, advantage in enumerate(advantages) if advantage.value != 0.0]
    for n, advantage in enumerate(advantages):
        if advantage.value == 0.0:
            ledger.exclude(
                Exclusion(
                    call_id=row.call_ids[n],
                    rollout_id=row.rollout_id,
                    attempt_id=row.attempt_id,
                    reason="zero_advantage",
                    detail=f"its reward equals the mean of its group: {advantage.because}",
                    credit=row.credits[n],
                    advantage=advantage,
                )
            )
    if not kept:
        return None
    row, given = row.only(kept), [advantages[n] for n in kept]
    ledger.train(row, given, number)
    return Weighed(row, given)


def _reason(one: "Ended", row: TrainingRow) -> tuple[ExclusionReason, str] | None:
    if one.rollout.status != "succeeded":
        return "failed_attempt", f"its rollout ended as {one.rollout.status}"
    if one.unusable is not None:
        return one.unusable
    rewards = [credit.reward for credit in row.credits]
    if any(reward is None for reward in rewards):
        return "no_reward", "no reward reached this row"
    if not all(math.isfinite(reward) for reward in rewards if reward is not None):
        return "malformed", f"its rewards are {rewards}"
    return None


class Totals:
    """Rollouts and calls of a whole run, evaluations too.

    Args:
        counts: Of the part of the run before a checkpoint.
    """

    def __init__(self, counts: dict[str, int] | None = None) -> None:
        self.counts: Counter[str] = Counter(counts or {})

    def add(self, collected: "Collected") -> None:
        """Add what was collected; its ledger must be complete."""
        self._add(len(collected.ended), collected.num_failed, collected.ledger)

    @classmethod
    async def counting(cls, store: "LightningStore", run: str) -> "Totals":
        """What a store's ledger counts of a run: what it did before this start, without the lost.

        Args:
            store: Where its accounts are.
            run: Its id.
        """
        totals = cls()
        parts = [part async for part in each_part(store, run=run, lost=False)]
        for start in range(0, len(parts), PAGE):
            page = parts[start : start + PAGE]
            ids = [part.rollout_id for part in page]
            rollouts = await store.query_rollouts(rollout_id_in=ids)
            failed = sum(rollout.status != "succeeded" for rollout in rollouts)
            totals._add(len(page), failed, Ledger.of_parts(page))
        return totals

    def _add(self, rollouts: int, failed: int, ledger: Ledger) -> None:
        self.counts["rollouts"] += rollouts
        self.counts["rollouts_failed"] += failed
        self.counts["calls"] += len(ledger.calls)
        self.counts["calls_trained"] += len(ledger.trained)
        for reason, count in ledger.reasons().items():
            self.counts[_EXCLUDED + reason] += count

    def summary(self) -> dict[str, Any]:
        """The four sums, and ``calls_excluded`` per reason."""
        names = ("rollouts", "rollouts_failed", "calls", "calls_trained")
        excluded = {
            name.removeprefix(_EXCLUDED): count
            for name, count in sorted(self.counts.items())
            if name.startswith(_EXCLUDED)
        }
        return {**{name: self.counts[name] for name in names}, "calls_excluded": excluded}


def collected_metrics(collected: "Collected") -> dict[str, float | None]:
    """``reward/...``, ``rollouts/...``, ``calls/...`` and ``time/rollouts`` of one collection."""
    ledger = collected.ledger.summary()
    rows = [row for one in collected.ended for row in one.rows]
    return {
        "reward/mean": collected.mean_reward,
        "reward/std": deviation(collected.rewards),
        "rollouts/succeeded": len(collected.ended) - collected.num_failed,
        "rollouts/failed": collected.num_failed,
        "rollouts/infrastructure": collected.num_infrastructure,
        "calls/total": ledger["calls"],
        "calls/trained": ledger["trained"],
        "calls/truncated": _num_truncated(collected.ledger),
        "calls/broken_tool_call": sum(sum(row.broken_tool_calls) for row in rows),
        **{f"calls/excluded/{reason}": count for reason, count in ledger["excluded"].items()},
        "time/rollouts": collected.seconds,
    }


def _num_truncated(ledger: Ledger) -> int:
    """Answers that were cut off, whatever became of them; not those of other models and agents."""
    others = {e.key for e in ledger.exclusions if e.kind == "call" and e.reason in _OF_OTHERS}
    return sum(item.truncated and item.key not in others for item in ledger.items.values())


def is_solved(collected: "Collected") -> bool:
    """Whether equal rewards are all that kept usable rows from being trained.

    What the collection has besides, such as a judge's calls, does not matter; but rows of at least
    two rollouts of one task must have been compared, and none may have failed.
    """
    groups = Counter(
        one.group for one in collected.ended if any(_reason(one, row) is None for row in one.rows)
    )
    is_compared = max(groups.values(), default=0) > 1
    return (
        is_compared
        and "zero_advantage" in collected.ledger.reasons()
        and not collected.ledger.trained
        and not collected.num_failed
    )


def why_nothing(collected: "Collected") -> str:
    """Why a step had nothing to train on, for a person."""
    total = len(collected.ended)
    parts = [f"{total} rollouts, {total - collected.num_failed} succeeded"]
    failures = [f"{kind} ({count})" for kind, count in collected.failures().items()]
    if failures:
        parts.append("failed with " + ", ".join(failures[:3]))
    if collected.num_infrastructure:
        parts.append(f"infrastructure failed model calls in {collected.num_infrastructure} of them")
    unusable = [one.unusable for one in collected.ended if one.unusable is not None]
    unread = [why for reason, why in unusable if reason == "malformed"]
    if unread:
        parts.append(f"of {len(unread)} nothing can be trained: {unread[0]}")
    elif not collected.ledger.calls:
        parts.append(
            "no model call was recorded: does the agent use the base_url of its LLM resource?"
        )
    reasons = collected.ledger.reasons()
    if reasons:
        listed = ", ".join(f"{reason} ({count})" for reason, count in sorted(reasons.items()))
        parts.append(f"model calls excluded as {listed}")
    if collected.mean_reward is not None:
        parts.append(f"mean reward {collected.mean_reward:.3f}")
    return "; ".join(parts)


def version_lag(rows: Sequence[TrainingRow], version: int) -> float:
    """How many versions the weights that sampled are behind ``version``, mean over calls."""
    lags = [
        version - int(given)
        for row in rows
        for given in row.model_versions
        if given is not None and given.isdecimal()
    ]
    return sum(lags) / len(lags) if lags else 0.0


def deviation(values: Sequence[float]) -> float | None:
    """Population standard deviation; None of nothing."""
    if not values:
        return None
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
