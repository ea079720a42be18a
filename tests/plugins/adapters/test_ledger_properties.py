"""Whatever the spans of some rollouts are, everything ends in one bin and no token is lost."""

from hypothesis import given, strategies as st

from agl.types import Attempt, TraceStatus
from agl_adapters import TraceToRows
from agl_learning.advantages.group_advantages import sibling_advantages
from agl_records.ledger.ledger import Ledger
from agl_testing.traces import Trace

CREDITS = ["final", "per_call", "per_agent", "discounted", "stepwise"]
STATUSES = ["succeeded", "failed", "timeout", "unresponsive", "running"]
KINDS = ["call", "call", "call", "twice", "flat", "agent", "tool", "reward", "named", "unknown"]
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=4)
spec = st.fixed_dictionaries(
    {
        "kind": st.sampled_from([*KINDS, "roleless", "error", "ledger"]),
        "attempt": st.integers(0, 2),
        "parent": st.integers(-3, 12),
        "time": st.none() | st.integers(0, 12),
        "length": st.integers(0, 4),
        "tokens": TOKENS,
        "goes_on": st.booleans(),
        "lacks": st.sampled_from(["", "", "", "ids", "logprobs", "one"]),
        "agent": st.sampled_from([None, "a", "b"]),
    }
)


def write(specs: list[dict], written: dict) -> list:
    """Spans of three attempts, in trees of any form; ``written`` gets what each call sampled."""
    traces = [Trace(f"at-{n}", start=100.0 * n) for n in range(3)]
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
            pairs = list(zip(sampled, logprobs, strict=True))
            written[span.attempt_id, span.span_id] = (one["lacks"], agent, pairs)
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
    max_length=st.sampled_from([None, 6]),
    statuses=st.none() | st.lists(st.sampled_from(STATUSES), min_size=3, max_size=3),
    order=st.randoms(use_true_random=False),
)
def test_the_ledger_balances_and_every_sampled_token_comes_back_once(
    specs, credit, air, agent_match, max_length, statuses, order
) -> None:
    written: dict = {}
    spans = write(specs, written)
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
    adapter = TraceToRows(agent_match, credit, max_length, **options)
    result = adapter.adapt(spans, attempts=attempts)

    assert len({row.attempt_id for row in result.rows}) <= 1
    seen: list[tuple[str, str]] = []
    for row in result.rows:
        assert {len(row.token_ids), len(row.loss_mask), len(row.logprobs)} == {len(row.token_ids)}
        assert sum(row.loss_mask) == sum(end - start for start, end in row.call_ranges)
        assert len(row.call_ids) == len(row.model_versions)
        assert max_length is None or len(row.token_ids) <= max_length
        assert all(p == 0.0 for p, m in zip(row.logprobs, row.loss_mask, strict=True) if not m)
        # Split again: each call's own range has what it sampled, with its log-probabilities.
        for call_id, (start, end) in zip(row.call_ids, row.call_ranges, strict=True):
            assert row.loss_mask[start:end] == [1] * (end - start)
            part = list(zip(row.token_ids[start:end], row.logprobs[start:end], strict=True))
            assert written[row.attempt_id, call_id] == ("", row.agent_name, part)
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


@given(st.lists(st.tuples(st.booleans(), TOKENS, TOKENS), min_size=1, max_size=6))
def test_calls_of_one_agent_share_a_row_exactly_when_prompts_go_on(calls):
    trace, so_far = Trace(), []
    wholes: list[list[int]] = []
    has_break: list[bool] = []
    for goes_on, given_tokens, sampled in calls:
        prompt = [*(so_far if goes_on else []), *given_tokens]
        so_far = [*prompt, *sampled]
        trace.gateway(prompt, sampled, agent="a")
        begun = [n for n, whole in enumerate(wholes) if prompt[: len(whole)] == whole]
        if not begun:
            has_break.append(any(whole[0] == prompt[0] for whole in wholes))
            begun = [len(wholes)]
            wholes.append([])
        longest = max(begun, key=lambda n: (len(wholes[n]), n))
        wholes[longest] = so_far
    trace.reward(1.0)
    rows = TraceToRows().adapt(trace.spans).rows
    assert [row.token_ids for row in rows] == wholes
    assert [row.row_break is not None for row in rows] == has_break
