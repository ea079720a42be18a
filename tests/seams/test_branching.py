"""Conversations that are compacted, or branch on the way, are several rows of one rollout.

Whatever their rows, each call is in one of them, and what they weigh in the loss adds up to one.
"""

import math
from collections import Counter, defaultdict

import pytest
from hypothesis import given, strategies as st

from agl.types import Rollout
from agl_adapters import TraceToRows
from agl_learning.advantages.weighing import WeighingOptions, weigh
from agl_learning.collect.results import Collected, Ended
from agl_records.ledger.ledger import Ledger
from agl_testing.traces import Trace

pytest.importorskip("torch")

from agl_torch.loss import row_weights

COMPACTED = 999
"""The token that a summary begins with."""

turns = st.tuples(
    st.sampled_from(["go on", "branch", "compact"]),
    st.integers(0, 9),  # where a branch leaves
    st.integers(1, 4),  # tokens that are given
    st.integers(1, 6),  # tokens that are sampled
)
groups = st.lists(st.lists(turns, min_size=1, max_size=7), min_size=2, max_size=4)


def record(rollout_id, conversation, reward):
    """Its spans, and how many tokens its calls sampled."""
    trace, past, fresh, sampled = Trace(), [[1, 2, 3]], iter(range(10, 900)), 0
    for kind, place, num_given, num_sampled in conversation:
        if kind == "go on":
            before = past[-1]
        elif kind == "branch":
            before = past[place % len(past)]
        else:
            before = [COMPACTED]
        prompt = [*before, *(next(fresh) for _ in range(num_given))]
        response = [next(fresh) for _ in range(num_sampled)]
        trace.gateway(prompt, response, rollout_id=rollout_id)
        past.append([*prompt, *response])
        sampled += num_sampled
    trace.reward(reward, rollout_id=rollout_id)
    return trace.spans, sampled


def read(conversations):
    """A group of rollouts with rewards 0, 1, 2, ..., as a step collects it."""
    collected, tokens = Collected([], Ledger(), 1.0), {}
    for number, conversation in enumerate(conversations):
        name = f"ro-{number}"
        spans, tokens[name] = record(name, conversation, float(number))
        adapted = TraceToRows().adapt(spans)
        collected.ledger.merge(adapted.ledger)
        rollout = Rollout(rollout_id=name, input=None, start_time=0.0, status="succeeded")
        collected.ended.append(Ended(rollout, 0, float(number), adapted.rows))
    return collected, tokens


@given(groups)
def test_rows_of_a_rollout_weigh_as_much_together_as_one(conversations):
    collected, tokens = read(conversations)
    weighed = weigh(collected, WeighingOptions())
    collected.ledger.check()
    rows = [one.row for one in weighed]
    calls = Counter((row.rollout_id, call) for row in rows for call in row.call_ids)
    trained = {row.rollout_id for row in rows}
    assert set(calls.values()) == {1}
    assert len(calls) == sum(len(conversations[int(name[3:])]) for name in trained)
    left_out = weighed[0].left_out if weighed else {}
    counts = [row.num_sampled for row in rows]
    weights = row_weights([row.rollout_id for row in rows], counts, left_out=left_out)
    counted = len(trained | left_out.keys())
    of_rollout, of_tokens = defaultdict(float), defaultdict(set)
    for row, weight in zip(rows, weights, strict=True):
        of_rollout[row.rollout_id] += weight.token * row.num_sampled
        of_tokens[row.rollout_id].add(weight.token)
    for name in trained:
        assert math.isclose(of_rollout[name], 1 / counted)
        # All tokens of a rollout are alike, in a long row or in a short one.
        assert of_tokens[name] == {1 / (tokens[name] * counted)}
