"""Credit, mean and advantage of a call once more, from what its group recorded.

What comes out is beside what the ledger has. They differ where spans or the code changed since, or
where a number was never what it was said to be.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from agl.errors import AglError
from agl.store.base import LightningStore
from agl.types import Rollout
from agl_learning.advantages.group_advantages import moments, sibling_advantages
from agl_learning.advantages.overlong_penalty import longest_answer, punishment
from agl_learning.advantages.weighing import DEFAULT, estimator_of
from agl_records.credit import GroupRule
from agl_records.row_builder import RowsAdapter, rows_adapter
from agl_records.training_data import TrainingRow
from agl_records.types import Credit, Exclusion, LedgerPart, Trained
from agl_runs.records import Run

SAME = 1e-9
"""Relative: numbers that differ by no more are the same."""


@dataclass(frozen=True)
class Compared:
    """A number as the ledger has it, and as it comes out now."""

    name: str
    was: float | None
    now: float | None

    @property
    def differs(self) -> bool:
        """Whether it is another one."""
        if self.was is None or self.now is None:
            return self.was is not self.now
        return abs(self.was - self.now) > SAME * max(1.0, abs(self.was))


@dataclass(frozen=True)
class Recomputed:
    """What came out."""

    numbers: tuple[Compared, ...]
    problem: str = ""
    """Why something could not be computed."""
    differs: bool = False
    """Whether any number is another one."""

    def lines(self) -> list[str]:
        """For people."""
        told = [
            f"{one.name}: {_said(one.was)} in the ledger, {_said(one.now)} now"
            f"{' DIFFERS' if one.differs else ''}"
            for one in self.numbers
        ]
        return [*told, *([self.problem] if self.problem else [])]


def _said(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"


async def recompute(
    store: LightningStore,
    run: Run | None,
    options: Mapping[str, Any],
    parts: Sequence[tuple[Rollout, LedgerPart]],
    item: Trained | Exclusion,
) -> Recomputed:
    """Compute what a call got once more.

    Args:
        store: Where the spans of its group are.
        run: Whose configuration says how.
        options: Of the algorithm.
        parts: The group: its rollouts with their accounts.
        item: The call in the ledger.
    """
    try:
        adapter = _adapter(run, options)
        if isinstance(getattr(adapter, "credit", None), GroupRule):
            return _not("a judge gave its credit; it is not asked again")
        if item.advantage is None:  # it is compared with nothing
            parts = [(one, part) for one, part in parts if one.rollout_id == item.rollout_id]
        credits = [await _credits(store, adapter, one, part, options, item) for one, part in parts]
    except AglError as error:
        return _not(f"it cannot be computed again: {error}")
    now = next((one for of in credits for key, one in of.items() if key == item.key), None)
    was = item.credit
    numbers = [Compared("credit", was and was.reward, now and now.reward)]
    if now is None or item.advantage is None or was is None:
        in_vain = "" if was is None else "its call is in no training row any more"
        return _of(numbers, "" if now else in_vain)
    before = [compared_credits(part, was.group) for _, part in parts]
    numbers.append(Compared("mean of the group", _mean(before), _mean(_by_group(credits, now))))
    estimator = options.get("estimator", estimator_of(item.advantage.because))
    if estimator != DEFAULT:
        why = f"estimator {estimator!r} looks at a whole step: agl replay computes it"
        return _of(numbers, why)
    rows = [[TrainingRow.model_construct(credits=list(of.values()))] for of in credits if of]
    given = sibling_advantages(rows, bool(options.get("normalise_std", True)))
    keys = [key for of in credits for key in of]
    flat = [one for of_rollout in given for of_row in of_rollout for one in of_row]
    found = dict(zip(keys, flat, strict=True))[item.key]
    numbers.append(Compared("advantage", item.advantage.value, found.value))
    return _of(numbers, "")


def _not(problem: str) -> Recomputed:
    return Recomputed((), problem)


def _of(numbers: Sequence[Compared], problem: str) -> Recomputed:
    return Recomputed(tuple(numbers), problem, any(one.differs for one in numbers))


def _adapter(run: Run | None, options: Mapping[str, Any]) -> RowsAdapter:
    given: Any = run.config.get("adapter") if run is not None else None
    known = {**cast("dict[str, Any]", given)} if isinstance(given, dict) else {}
    known.pop("type", None)
    if options.get("credit") is not None:
        known["credit"] = options["credit"]
    return rows_adapter(**known)


async def _credits(
    store: LightningStore,
    adapter: RowsAdapter,
    one: Rollout,
    part: LedgerPart,
    options: Mapping[str, Any],
    asked: Trained | Exclusion,
) -> dict[Any, Credit]:
    """What a call, and those of a rollout with which the ledger compares it, get now."""
    wanted = {
        item.key
        for item in (*part.trained, *part.excluded)
        if item.kind == "call" and (item.advantage is not None or item.key == asked.key)
    }
    if not wanted:
        return {}
    spans = list(await store.query_spans(one.rollout_id))
    attempts = list(await store.query_attempts(one.rollout_id))
    rows = adapter.adapt(spans, attempts=attempts).rows
    cost = _cost(rows, part, options)
    return {
        key: credit.model_copy(update={"reward": (credit.reward or 0.0) + cost}) if cost else credit
        for row in rows
        for call_id, credit in zip(row.call_ids, row.credits, strict=True)
        if (key := (row.rollout_id, row.attempt_id, call_id)) in wanted
    }


def _cost(rows: Sequence[TrainingRow], part: LedgerPart, options: Mapping[str, Any]) -> float:
    buffer, limit = options.get("overlong_buffer"), options.get("max_tokens")
    if not isinstance(buffer, int) or not isinstance(limit, int) or not rows:
        return 0.0
    is_cut_off = any(one.reason == "truncated" for one in part.excluded)
    longest = longest_answer(rows, limit, is_cut_off)
    return options.get("overlong_penalty", 1.0) * punishment(longest, limit, buffer)


def compared_credits(part: LedgerPart, group: str) -> list[float]:
    """What those calls of a rollout got, by the ledger, that are compared in this group."""
    return [
        one.credit.reward
        for one in (*part.trained, *part.excluded)
        if one.kind == "call" and one.advantage is not None and one.credit is not None
        if one.credit.group == group and one.credit.reward is not None
    ]


def _by_group(credits: Sequence[Mapping[Any, Credit]], call: Credit) -> list[list[float]]:
    return [[one.reward or 0.0 for one in of.values() if one.group == call.group] for of in credits]


def _mean(rewards: Sequence[Sequence[float]]) -> float | None:
    counted = [each for each in rewards if each]
    return moments(counted).mean if counted else None
