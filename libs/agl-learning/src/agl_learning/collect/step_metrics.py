"""What became of collected rollouts: usable rows, sums, metrics, reasons."""

import math
from collections import Counter
from collections.abc import Sequence
from statistics import pstdev
from typing import Any

from agl.store.base import LightningStore
from agl.store.queries import PAGE
from agl.types import Rollout
from agl_learning.collect.failure_bias import failure_metrics
from agl_learning.collect.prompt_checks import prompt_metrics
from agl_learning.collect.results import Collected, Ended
from agl_records.ledger.documents import each_part
from agl_records.ledger.ledger import Ledger, save_ledger
from agl_records.training_data import TrainedModel, TrainingRow
from agl_records.types import OF_OTHERS, ExclusionReason

Usable = tuple[Ended, list[tuple[int, TrainingRow]]]
"""A rollout and its usable rows, each with its position among all its rows."""

_EXCLUDED = "excluded/"
_OF_OTHERS = OF_OTHERS | {"failed_attempt", "superseded_attempt", "late"}
"""Calls that are no question of training."""


def usable_rows(collected: Collected) -> list[Usable]:
    """What of the rollouts can be trained; the other rows are excluded in the ledger.

    Calls of rollouts that failed are excluded, unless ``Failures`` has them trained, as are calls
    without a reward, and rows of token ids whose prompts had images: no trainer has these.

    Returns:
        Of each rollout that has any, its usable rows by their tokens, and not as they were
        recorded: agents may call side by side.
    """
    found: list[Usable] = []
    for one in collected.ended:
        usable: list[tuple[int, TrainingRow]] = []
        for number, row in enumerate(one.rows):
            reason = _reason(one, row)
            if reason is None:
                usable.append((number, row))
            else:
                collected.ledger.exclude_row(row, *reason)
        usable.sort(key=lambda numbered: (numbered[1].token_ids, numbered[1].logprobs))
        if usable:
            found.append((one, usable))
    return found


def _reason(one: Ended, row: TrainingRow) -> tuple[ExclusionReason, str] | None:
    if one.unusable is not None:
        return one.unusable
    if one.rollout.status != "succeeded" and one.failed is None:
        return "failed_attempt", f"its rollout ended as {one.rollout.status}"
    if row.images and row.token_ids:
        return "images", f"its prompt has {len(row.images)} images, and only token ids are trained"
    rewards = [credit.reward for credit in row.credits]
    if any(reward is None for reward in rewards):
        return "no_reward", "no reward reached this row"
    if not all(math.isfinite(reward) for reward in rewards if reward is not None):
        return "malformed", f"its rewards are {rewards}"
    return None


class Totals:
    """Rollouts and calls of a whole run, evaluations too, from those before a checkpoint on."""

    def __init__(self, counts: dict[str, int] | None = None) -> None:
        self.counts: Counter[str] = Counter(counts or {})

    @classmethod
    async def counting(cls, store: LightningStore, run: str) -> "Totals":
        """What a store's ledger counts of a run, by earlier starts too; without the lost."""
        totals = cls()
        parts = [part async for part in each_part(store, run=run, lost=False)]
        for start in range(0, len(parts), PAGE):
            page = parts[start : start + PAGE]
            ids = [part.rollout_id for part in page]
            totals.add(await store.query_rollouts(rollout_id_in=ids), Ledger.of_parts(page))
        return totals

    async def keep(self, store: LightningStore, collected: Collected, **about: Any) -> None:
        """Keep the ledger of a collection, which ``save_ledger`` is told ``about``, and add it."""
        await save_ledger(store, collected.ledger, collected.rollouts, **about)
        self.add(collected.rollouts, collected.ledger)

    def add(self, rollouts: Sequence[Rollout], ledger: Ledger) -> None:
        """Add what was collected; the ledger is that of these rollouts, and complete."""
        self.counts["rollouts"] += len(rollouts)
        self.counts["rollouts_failed"] += sum(one.status == "failed" for one in rollouts)
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


def collected_metrics(
    collected: Collected, model: TrainedModel | None = None
) -> dict[str, float | None]:
    """``reward/...``, ``rollouts/...``, ``failures/...``, ``calls/...`` and ``time/rollouts``.

    Args:
        collected: What was collected.
        model: The one that is trained, as far as it is known.
    """
    ledger = collected.ledger.summary()
    # Of late calls the ledger tells alone: how many there are depends on when one looks.
    late = ledger["excluded"].pop("late", 0)
    rows = [row for one in collected.ended for row in one.rows]
    # Tokens of all calls, of a conversation once; nothing where no ids were recorded.
    left_out = [one.tokens_left_out for one in (*collected.ended, *collected.lost)]
    sampled, whole = sum(row.num_sampled for row in rows), sum(len(row.token_ids) for row in rows)
    given = whole - sampled + sum(given for _, given in left_out)
    sampled += sum(sampled for sampled, _ in left_out)
    # Answers that were cut off count, whatever became of them; those of other models do not.
    items, excluded = collected.ledger.items.values(), collected.ledger.exclusions
    others = {one.key for one in excluded if one.kind == "call" and one.reason in _OF_OTHERS}
    # How many rollouts ran at once, as a mean over the time of those that succeeded.
    ran = [one.ran for one in collected.ended if one.ran is not None]
    took = max((one.end for one in ran), default=0) - min((one.begin for one in ran), default=0)
    busy = math.fsum(one.end - one.begin for one in ran)
    return {
        "reward/mean": collected.mean_reward,
        "reward/std": pstdev(collected.rewards) if collected.rewards else None,
        "rollouts/succeeded": len(collected.ended) - collected.num_failed,
        "rollouts/failed": collected.num_failed,
        "rollouts/infrastructure": collected.num_infrastructure,
        "rollouts/unreadable": sum(
            one.unusable is not None and one.unusable[0] == "malformed" for one in collected.ended
        ),
        **failure_metrics(collected.ended),
        "calls/total": ledger["calls"] - late,
        "calls/trained": ledger["trained"],
        "calls/truncated": sum(one.truncated and one.key not in others for one in items),
        **{
            f"calls/{problem}": sum(row.tool_problems.count(problem) for row in rows)
            for problem in ("broken_tool_call", "unknown_tool")
        },
        **({"tokens/sampled": sampled, "tokens/given": given} if sampled or given else {}),
        **prompt_metrics(collected.ended, model and model.unknown_token_id),
        **{f"calls/excluded/{reason}": count for reason, count in ledger["excluded"].items()},
        "time/rollouts": collected.seconds,
        **({"time/rollouts_at_once": busy / took} if took > 0 else {}),
        **collected.judged,
    }


def why_nothing(collected: Collected) -> str:
    """Why a step had nothing to train on, for a person."""
    total = len(collected.ended)
    parts = [f"{total} rollouts, {total - collected.num_failed} succeeded"]
    failures = [f"{kind} ({count})" for kind, count in collected.failures().items()]
    if failures:
        parts.append("failed with " + ", ".join(failures[:3]))
    if collected.num_infrastructure:
        parts.append(f"infrastructure failed model calls in {collected.num_infrastructure} of them")
    unusable = [one.unusable for one in collected.ended if one.unusable is not None]
    unread = [why for reason, why in unusable if reason in ("malformed", "no_reward")]
    if unread:
        parts.append(f"of {len(unread)} nothing can be trained: {unread[0]}")
    elif refused := [one.problem for one in collected.ended if one.problem is not None]:
        parts.append(f"of {len(refused)} the reward was refused: {refused[0]}")
    elif not collected.ledger.calls and collected.num_failed < total:
        parts.append(
            "no model call was recorded: does the agent use the base_url of its LLM resource?"
        )
    reasons = collected.ledger.reasons()
    if reasons:
        listed = ", ".join(f"{reason} ({count})" for reason, count in sorted(reasons.items()))
        parts.append(f"model calls excluded as {listed}")
    if collected.mean_reward is not None:
        parts.append(f"mean reward {collected.mean_reward:.3f}")
    elif set(reasons) == {"no_reward"}:
        parts.append("does the agent return a number, or call agl.emit_reward(value)?")
    return "; ".join(parts)


def version_lag(rows: Sequence[TrainingRow], version: int) -> float | None:
    """How many versions the weights that sampled are behind ``version``, mean over calls.

    None where the server has said of no call which version sampled it.
    """
    lags = version_lags(rows, version)
    return sum(lags) / len(lags) if lags else None


def version_lags(rows: Sequence[TrainingRow], version: int) -> list[int]:
    """The same of each call whose version is known; "3-4" began with the weights of version 3."""
    begun = [(given or "").partition("-")[0] for row in rows for given in row.model_versions]
    return [version - int(given) for given in begun if given.isdecimal()]
