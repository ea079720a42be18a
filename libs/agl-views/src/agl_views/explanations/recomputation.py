"""Credit, mean and advantage of a call once more: what ``weigh`` makes now of what was recorded.

They stand beside those in the ledger, and differ where spans or the code changed since.
"""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields
from typing import Any, cast

from agl.store.base import LightningStore
from agl_learning.advantages.estimator_option import ADVANTAGES, DEFAULT
from agl_learning.advantages.group_advantages import Moments, moments
from agl_learning.advantages.weighing import WeighingOptions, weigh
from agl_learning.collect.results import Collected
from agl_learning.collect.rollout_reader import Reader
from agl_learning.trainer.comparison import Compared
from agl_records.credit import GroupRule
from agl_records.ledger.ledger import Ledger
from agl_records.row_builder import RowsAdapter, rows_adapter
from agl_records.training_data import TrainedModel, TrainingRow
from agl_records.types import CallKey, Exclusion, LedgerPart, Trained
from agl_runs.failures import Failures
from agl_runs.records import Run
from agl_views.explanations.explanation import Chain, group_of
from agl_views.explanations.token_parts import Recomputed

_SAME = 1e-9
"""Relative: numbers that differ by no more are the same."""
Item = Trained | Exclusion


async def recompute(
    store: LightningStore,
    run: Run | None,
    options: Mapping[str, Any],
    chain: Chain,
    item: Item,
    estimator: str,
) -> Recomputed:
    """Compute what a call got once more, as the configuration of its run says how.

    The estimator is the one that made its advantage; "" where that is not recorded.
    """
    siblings, served_model = chain.siblings, chain.calls[item.call_id].served_model
    model, problem = None, ""
    if item.advantage is None:  # it was compared with nothing
        estimator = DEFAULT
        siblings = [one for one in siblings if one[0].rollout_id == item.rollout_id]
    else:
        model = TrainedModel(name=served_model) if served_model else None
    is_known = estimator in ADVANTAGES or ":" in estimator
    is_foreseen, is_recorded = bool(item.advantage and item.advantage.is_foreseen), bool(estimator)
    if is_foreseen or not (is_known and is_recorded):
        needs = f"estimator {estimator!r} needs what models say of tokens"
        missing = needs if is_recorded else "what made its advantage is not recorded"
        problem = f"{missing}: agl replay computes it"
        estimator = DEFAULT
    names = (one.name for one in fields(WeighingOptions))
    given: dict[str, Any] = {name: options[name] for name in names if name in options}
    of_it: Any = options.get("estimator")
    rest = cast("dict[str, Any]", of_it) if isinstance(of_it, dict) else {}
    given["estimator"] = {**rest, "type": estimator}
    try:
        adapter = _adapter(run, options)
        if isinstance(getattr(adapter, "credit", None), GroupRule):
            return Recomputed((), "a judge gave its credit; it is not asked again")
        failures = Failures(**Failures.given(options.get("failures", {})))
        reader = Reader(store, adapter, failures, model)
        # What the ledger compares with each other, and the rows of the call.
        collected, groups = Collected([], Ledger(), 0.0), dict[str, int]()
        for rollout, part in siblings if estimator == DEFAULT else chain.of_step:
            keys = {one.key for one in calls_of(part) if one.advantage or one.key == item.key}
            if keys:
                group = groups.setdefault(group_of(rollout), len(groups))
                one = await reader.read(rollout, group, collected.ledger)
                rows = [(row, _numbers(row, keys)) for row in one.rows]
                one.rows = [row.only(numbers) for row, numbers in rows if numbers]
                collected.ended.append(one)
        weigh(collected, WeighingOptions(**given))
    except Exception as error:  # an estimator of one's own may raise anything
        return Recomputed((), f"it cannot be computed again: {error}")
    ids = {one.rollout_id for one, _ in siblings}
    now = [part for part in collected.ledger.parts() if part.rollout_id in ids]
    found = next((one for part in now for one in calls_of(part) if one.key == item.key), None)
    numbers = [_compared("credit", _credit(item), _credit(found))]
    if found is None and item.credit is not None:
        problem = "its call is in no training row any more"
    elif item.advantage is not None and item.credit is not None:
        name, before = item.credit.group, [part for _, part in siblings]
        means = [each and each.mean for each in (moments_in(before, name), moments_in(now, name))]
        if ":" not in estimator:  # one's own need not use it
            numbers.append(_compared("mean of the group", *means))
        if not problem:
            values = [one and one.advantage and one.advantage.value for one in (item, found)]
            numbers.append(_compared("advantage", *values))
    return Recomputed(tuple(numbers), problem)


def _adapter(run: Run | None, options: Mapping[str, Any]) -> RowsAdapter:
    given: Any = run.config.get("adapter") if run is not None else None
    known = {**cast("dict[str, Any]", given)} if isinstance(given, dict) else {}
    known.pop("type", None)
    if options.get("credit") is not None:
        known["credit"] = options["credit"]
    return rows_adapter(**known)


def _numbers(row: TrainingRow, keys: Set[CallKey]) -> list[int]:
    """Which calls of a row have these keys."""
    ids = enumerate(row.call_ids)
    return [n for n, one in ids if (row.rollout_id, row.attempt_id, one) in keys]


def calls_of(part: LedgerPart) -> list[Item]:
    """What an account says of calls."""
    return [one for one in (*part.trained, *part.excluded) if one.kind == "call"]


def compared_credits(part: LedgerPart, group: str) -> list[float]:
    """What those calls of a rollout got, by its account, that are compared in this group."""
    return [
        one.credit.reward
        for one in calls_of(part)
        if one.advantage is not None and one.credit is not None
        if one.credit.group == group and one.credit.reward is not None
    ]


def moments_in(parts: Sequence[LedgerPart], group: str) -> Moments | None:
    """Mean and deviation of a group, as ``weigh`` takes them; None where nothing is compared."""
    rewards = [given for part in parts if (given := compared_credits(part, group))]
    return moments(rewards) if rewards else None


def _credit(one: Item | None) -> float | None:
    return one.credit.reward if one is not None and one.credit is not None else None


def _compared(what: str, before: float | None, now: float | None) -> Compared:
    is_same = before is now is None
    if before is not None and now is not None:
        is_same = math.isclose(before, now, rel_tol=_SAME, abs_tol=_SAME)
    return Compared(what, before, now, is_same)
