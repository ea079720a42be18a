"""Rollouts as they come from a store, made by hand."""

import pytest
from tests.training_rows import training_row

from agl.types import Rollout
from agl_learning.collect.results import Collected, Ended
from agl_records.ledger.ledger import Ledger
from agl_records.training_data import ModelCall
from agl_records.types import Credit, Exclusion


def row_of(rollout_id, token_ids, call_ranges, credits, **about):
    """A row; its calls are numbered."""
    given = {"attempt_id": "at", "model_versions": [None] * len(call_ranges), **about}
    return training_row(token_ids, call_ranges, rollout_id=rollout_id, credits=credits, **given)


def make_row(rollout_id, answer, reward=0.0, version="0"):
    about = {"attempt_id": f"at-{rollout_id}", "call_ids": [f"call-{rollout_id}-{answer}"]}
    tokens, credits = [1, 4, 3, 2, answer], [Credit(reward=reward)]
    return row_of(rollout_id, tokens, [(4, 5)], credits, model_versions=[version], **about)


def two_calls(rollout_id, first, second):
    credits = [Credit(reward=first, group="call 1"), Credit(reward=second, group="call 2")]
    about = {"call_ids": ["one", "two"], "model_versions": ["0", "0"]}
    return row_of(rollout_id, [1, 4, 5, 3, 6], [(2, 3), (4, 5)], credits, **about)


def leave_out(ledger, call_id, reason, rollout_id="a", attempt_id="at", **about):
    """Announce a call, and exclude it."""
    ids = {"rollout_id": rollout_id, "attempt_id": attempt_id, "call_id": call_id}
    ledger.add_call(ModelCall(**ids, sequence_id=9, **about))
    ledger.exclude(Exclusion(**ids, reason=reason))


def make_ended(name, group, calls, status="succeeded", agent=None):
    """A rollout with one row; ``calls`` are (given tokens, sampled tokens, reward)."""
    rollout = Rollout(rollout_id=name, input=None, start_time=0.0, status=status)
    tokens, ranges = [], []
    for given, sampled, _ in calls:
        start = len(tokens) + len(given)
        tokens += [*given, *sampled]
        ranges.append((start, start + len(sampled)))
    rewards = [reward for *_, reward in calls]
    credits = [Credit(reward=reward, sources=[]) for reward in rewards]
    row = row_of(name, tokens, ranges, credits, agent_name=agent)
    return Ended(rollout, group, rewards[-1] if rewards else None, [row] if calls else [])


def make_collected(*ended):
    ledger = Ledger()
    for one in ended:
        ledger.add_rollout(one.rollout.rollout_id)
        for row in one.rows:
            for call_id in row.call_ids:
                ids = {"rollout_id": row.rollout_id, "attempt_id": row.attempt_id}
                ledger.add_call(ModelCall(call_id=call_id, sequence_id=1, **ids))
    return Collected(list(ended), ledger, 1.0)


@pytest.fixture
def ended():
    return make_ended


@pytest.fixture
def collected():
    return make_collected
