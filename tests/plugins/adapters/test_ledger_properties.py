"""Whatever the spans of some rollouts are, everything ends in one bin and no token is lost."""

import random

from hypothesis import given, strategies as st

from agl.types import Attempt, TraceStatus
from agl_adapters import TraceToRows
from agl_learning.advantages.group_advantages import sibling_advantages
from agl_records.ledger.ledger import Ledger

CREDITS = ["final", "per_call", "per_agent", "discounted", "stepwise"]
STATUSES = ["succeeded", "failed", "timeout", "unresponsive", "running"]
KINDS = ["call", "call", "call", "twice", "flat", "agent", "tool", "reward", "named", "unknown"]
spec = st.fixed_dictionaries(
    {
        "kind": st.sampled_from([*KINDS, "roleless", "error", "ledger"]),
        "attempt": st.integers(0, 2),
        "parent": st.integers(-3, 12),
        "time": st.none() | st.integers(0, 12),
        "length": st.integers(0, 4),
        "tokens": st.lists(st.integers(0, 2), min_size=1, max_size=4),
        "goes_on": st.booleans(),
        "lacks": st.sampled_from(["", "", "", "ids", "logprobs", "one"]),
        "agent": st.sampled_from([None, "a", "b"]),
    }
)


def write(new_trace, specs: list[dict], written: dict) -> list:
    """Spans of three attempts, in trees of any form; ``written`` gets what each call sampled."""
    traces = [new_trace(f"at-{n}", start=100.0 * n) for n in range(3)]
    so_far: dict[tuple, list[int]] = {}
    for number, one in enumerate(specs):
        trace = traces[one["attempt"]]
        where = {"parent_id": f"{one['parent']:016x}" if one["parent"] > 0 else None}
        if one["time"] is not None:
            where["start_time"] = trace.start + one["time"]
            where["end_time"] = trace.start + one["time"] + one["length"]
        kind, agent = one["kind"], one["agent"]
        if kind in ("call", "twice", "roleless", "error"):
            key = (one["attempt"], agent)
            prompt = [*(so_far.get(key, []) if one["goes_on"] else []), *one["tokens"]]
            sampled = one["tokens"][::-1]
            so_far[key] = [*prompt, *sampled]
            logprobs = [-1.0 - number - place / 8 for place in range(len(sampled))]
            given = {"logprobs": [], "one": [*logprobs, -1.0]}.get(one["lacks"], logprobs)
            ids = (None, None) if one["lacks"] == "ids" else (prompt, sampled)
            span = trace.gateway(
                *ids,
                agent=agent,
                logprobs=given,
                response_id=f"c-{number}" if kind == "twice" else None,
                error="down" if kind == "error" else None,
                messages=[{"content": "hi"}] if kind == "roleless" else None,
                **where,
            )
            if kind == "twice":
                trace.flat(f"c-{number}", **where)
            written[span.attempt_id, span.span_id] = list(zip(sampled, logprobs, strict=True))
        elif kind == "flat":
            trace.flat(None, **where)
        elif kind == "agent":
            trace.span("agent", {"agent.name": agent or "c"}, **where)
        elif kind == "tool":
            status = TraceStatus(status_code="ERROR" if one["goes_on"] else "OK")
            trace.span("tool", {"tool.name": "search"}, status=status, **where)
        elif kind == "reward":
            trace.reward(float(len(one["tokens"])), **where)
        elif kind == "named":
            name = {"agentlightning.reward.0.name": agent or "a"}
            value = {"agentlightning.reward.0.value": float(one["length"])}
            trace.span("agentlightning.annotation", {**name, **value}, **where)
        elif kind == "unknown":
            trace.span("invoke", {"llm.vendor": "x"}, **where)
        else:
            trace.span("agentlightning.ledger", {"agentlightning.ledger.part": "{}"}, **where)
    return [span for trace in traces for span in trace.spans]


@given(
    specs=st.lists(spec, max_size=10),
    credit=st.sampled_from(CREDITS),
    air=st.booleans(),
    agent_match=st.sampled_from([None, "a"]),
    statuses=st.none() | st.lists(st.sampled_from(STATUSES), min_size=3, max_size=3),
    order=st.randoms(use_true_random=False),
)
def test_the_ledger_balances_and_every_sampled_token_comes_back_once(
    new_trace_factory, specs, credit, air, agent_match, statuses, order: random.Random
) -> None:
    written: dict = {}
    spans = write(new_trace_factory, specs, written)
    # Late and twice: in any order, some of them again.
    spans = [*spans, *order.sample(spans, len(spans) // 2)]
    order.shuffle(spans)
    attempts = statuses and [
        Attempt(
            rollout_id="ro-1", attempt_id=f"at-{n}", sequence_id=n + 1, start_time=0.0, status=s
        )
        for n, s in enumerate(statuses)
    ]
    options = {"air": {"on_tool_success": 0.5, "on_tool_failure": -0.5}} if air else {}
    if credit in ("final", "per_agent"):
        options = {}
    adapter = TraceToRows(credit=credit, agent_match=agent_match, **options)
    result = adapter.adapt(spans, attempts=attempts)

    assert len({row.attempt_id for row in result.rows}) <= 1
    seen: list[tuple[str, str]] = []
    for row in result.rows:
        assert {len(row.token_ids), len(row.loss_mask), len(row.logprobs)} == {len(row.token_ids)}
        assert sum(row.loss_mask) == sum(end - start for start, end in row.call_ranges)
        # Split again: each call's own range has what it sampled, with its log-probabilities.
        for call_id, (start, end) in zip(row.call_ids, row.call_ranges, strict=True):
            assert row.loss_mask[start:end] == [1] * (end - start)
            part = list(zip(row.token_ids[start:end], row.logprobs[start:end], strict=True))
            assert part == written[row.attempt_id, call_id]
            seen.append((row.attempt_id, call_id))
    assert len(seen) == len(set(seen))

    (advantages,) = sibling_advantages([result.rows]) if result.rows else ([],)
    for number, (row, of_calls) in enumerate(zip(result.rows, advantages, strict=True)):
        result.ledger.train(row, of_calls, number)
    result.ledger.check()
    assert Ledger.of_parts(result.ledger.parts(step=1)) == result.ledger
    trained = [(item.attempt_id, item.call_id) for item in result.ledger.trained]
    assert trained == seen
    gateways = {key for key in result.ledger.calls if key[1:] in written}
    assert len(gateways) == len(written)
