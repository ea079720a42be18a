"""Rollouts as they come from a store, made by hand."""

import pytest

from agl.types import Credit, Rollout
from agl_learning.collected import Collected, Ended
from agl_learning.ledger import Ledger
from agl_learning.records import ModelCall, TrainingRow


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
