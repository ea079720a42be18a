"""Rollouts as they come from a store, made by hand."""

import pytest

from agl.types import Rollout
from agl_learning.collect.results import Collected, Ended
from agl_records.ledger.ledger import Ledger
from agl_records.training_data import ModelCall, TrainingRow
from agl_records.types import Credit


def make_row(rollout_id, answer, reward=0.0, version="0"):
    return TrainingRow(
        rollout_id=rollout_id,
        attempt_id=f"at-{rollout_id}",
        token_ids=[1, 4, 3, 2, answer],
        logprobs=[0.0] * 4 + [-2.7],
        call_ids=[f"call-{rollout_id}-{answer}"],
        call_ranges=[(4, 5)],
        credits=[Credit(reward=reward)],
        model_versions=[version],
    )


def two_calls(rollout_id, first, second):
    return TrainingRow(
        rollout_id=rollout_id,
        attempt_id="at",
        token_ids=[1, 4, 5, 3, 6],
        logprobs=[0.0, 0.0, -2.7, 0.0, -2.7],
        call_ids=["one", "two"],
        call_ranges=[(2, 3), (4, 5)],
        credits=[Credit(reward=first, group="call 1"), Credit(reward=second, group="call 2")],
        model_versions=["0", "0"],
    )


def make_ended(name, group, calls, status="succeeded", agent=None):
    """A rollout with one row; ``calls`` are (given tokens, sampled tokens, reward)."""
    rollout = Rollout(rollout_id=name, input=None, start_time=0.0, status=status)
    tokens, ranges = [], []
    for given, sampled, _ in calls:
        start = len(tokens) + len(given)
        tokens += [*given, *sampled]
        ranges.append((start, start + len(sampled)))
    rewards = [reward for *_, reward in calls]
    row = TrainingRow(
        rollout_id=name,
        attempt_id="at",
        agent_name=agent,
        token_ids=tokens,
        logprobs=[0.0] * len(tokens),
        call_ids=[f"{name}-{number}" for number in range(len(calls))],
        call_ranges=ranges,
        credits=[Credit(reward=reward, sources=[]) for reward in rewards],
        model_versions=[None] * len(calls),
    )
    return Ended(rollout, group, rewards[-1] if rewards else None, [row] if calls else [])


def make_collected(*ended):
    ledger = Ledger()
    for one in ended:
        ledger.add_rollout(one.rollout.rollout_id)
        for row in one.rows:
            for call_id in row.call_ids:
                ledger.add_call(
                    ModelCall(
                        call_id=call_id,
                        rollout_id=row.rollout_id,
                        attempt_id=row.attempt_id,
                        sequence_id=1,
                    )
                )
    return Collected(list(ended), ledger, 1.0)


@pytest.fixture
def ended():
    return make_ended


@pytest.fixture
def collected():
    return make_collected
