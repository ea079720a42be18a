"""Accounts of filled rollouts, as an algorithm keeps them in its ledger."""

import statistics
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

from agl_records.types import Advantage, Credit, Exclusion, LedgerItem, LedgerPart, Trained
from filling.templates import Holes, part_template

Fate = Literal["trained", "zero_advantage", "not_trained_mode", "failed_attempt"]
DETAILS = {
    "zero_advantage": "its reward equals the mean of its group",
    "not_trained_mode": "its rollout is a validation",
    "failed_attempt": "its attempt failed",
}


def compared(rewards: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation of a group's rewards."""
    return statistics.fmean(rewards), statistics.stdev(rewards) if len(rewards) > 1 else 0.0


@cache
def account(fate: Fate, truncated: tuple[bool, ...]) -> str:
    """The account of a rollout as a template.

    Holes: rollout, attempt, run, step, version, row of the reward span (``reward_id``), reward,
    and per call ``call0``, ``call1`` ...; of compared ones also ``advantage`` and ``because``.

    Args:
        fate: What became of all of its calls.
        truncated: Per call, whether it was cut off.
    """
    holes = Holes()
    of: dict[str, Any] = {"rollout_id": holes.text("rollout"), "attempt_id": holes.text("attempt")}
    calls: list[dict[str, Any]] = [
        {**of, "call_id": holes.text(f"call{n}")} for n in range(len(truncated))
    ]
    reward: dict[str, Any] = {**of, "call_id": holes.text("reward_id"), "kind": "reward"}
    is_rewarded, is_compared = fate != "failed_attempt", fate in ("trained", "zero_advantage")
    about: dict[str, Any] = {}
    if is_rewarded:
        about["credit"] = Credit(
            reward=holes.number("reward"),
            rule="final",
            sources=[reward["call_id"]],
            because=f"the last reward of the attempt is {holes.text('shown')}",
        )
    if is_compared:
        because = holes.text("because")
        value = holes.number("advantage")
        about["advantage"] = Advantage(value=value, group="", because=because, estimator="grpo")
    trained = [Trained(**reward)] if is_rewarded else []
    excluded: list[Exclusion] = []
    for row, one in enumerate(calls):
        if fate == "trained":
            trained.append(Trained(**one, row=row, model_version=holes.text("sampled"), **about))
        else:
            excluded.append(Exclusion(**one, reason=fate, detail=DETAILS[fate], **about))
    part = LedgerPart(
        rollout_id=of["rollout_id"],
        step=_STEP,
        mode=holes.text("mode"),
        algorithm="grpo",
        run=holes.text("run"),
        generation=1,
        version=holes.text("version"),
        items=[
            LedgerItem(kind="rollout", rollout_id=of["rollout_id"]),
            *(LedgerItem(**one, truncated=cut) for one, cut in zip(calls, truncated, strict=True)),
            *([LedgerItem(**reward)] if is_rewarded else []),
        ],
        trained=trained,
        excluded=excluded,
    )
    return part_template(holes, part).replace(f'"step":{_STEP},', '"step":%(step)d,', 1)


_STEP = 7_654_321
