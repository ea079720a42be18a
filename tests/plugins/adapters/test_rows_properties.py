"""Whatever the calls of an attempt are, the account balances and no sampled token is lost."""

import random
from dataclasses import dataclass

from hypothesis import given, strategies as st

from agl_adapters import TraceToRows
from agl_records.calls.reader import model_calls

tokens = st.integers(0, 3)
some_tokens = st.lists(tokens, min_size=1, max_size=4)


@dataclass
class Spec:
    """One call: whose it is, how its prompt relates to the one before, and what it lacks."""

    agent: str | None
    goes_on: bool
    given: list[int]
    sampled: list[int]
    lacks: str
    twice: bool
    attempt: int


specs = st.builds(
    Spec,
    agent=st.sampled_from([None, "a", "b"]),
    goes_on=st.booleans(),
    given=some_tokens,
    sampled=some_tokens,
    lacks=st.sampled_from(["", "", "", "ids", "logprobs", "one logprob", "answer"]),
    twice=st.booleans(),
    attempt=st.integers(1, 2),
)


def write(new_trace, calls: list[Spec]) -> tuple[list, dict]:
    """The spans, and per gateway span what a row must give back."""
    traces = {number: new_trace(f"at-{number}", start=1000.0 * number) for number in (1, 2)}
    so_far: dict[tuple, list[int]] = {}
    written: dict[tuple[str, str], tuple[Spec, list[float]]] = {}
    for number, spec in enumerate(calls):
        trace = traces[spec.attempt]
        key = (spec.attempt, spec.agent)
        prompt = [*(so_far.get(key, []) if spec.goes_on else []), *spec.given]
        logprobs = [-(number + 1) - position / 8 for position in range(len(spec.sampled))]
        so_far[key] = [*prompt, *spec.sampled]
        response_id = f"c-{number}" if spec.twice else None
        span = trace.gateway(
            None if spec.lacks == "ids" else prompt,
            None if spec.lacks == "ids" else spec.sampled,
            response_id=response_id,
            agent=spec.agent,
            logprobs={"logprobs": [], "one logprob": [*logprobs, -1.0]}.get(spec.lacks, logprobs),
            error="down" if spec.lacks == "answer" else None,
        )
        if spec.twice:
            trace.flat(response_id, start_time=span.start_time, end_time=span.end_time)
        written[span.attempt_id, span.span_id] = (spec, logprobs)
    for trace in traces.values():
        if trace.spans:
            trace.reward(1.0)
    return [span for trace in traces.values() for span in trace.spans], written


@given(
    calls=st.lists(specs, max_size=8),
    agent_match=st.sampled_from([None, "a"]),
    max_length=st.sampled_from([None, 6]),
    order=st.randoms(use_true_random=False),
)
def test_every_call_is_in_one_bin_and_every_token_comes_back_once(
    new_trace_factory, calls, agent_match, max_length, order: random.Random
) -> None:
    spans, written = write(new_trace_factory, calls)
    order.shuffle(spans)
    result = TraceToRows(agent_match=agent_match, max_length=max_length).adapt(spans)

    for row in result.rows:
        result.ledger.train(row)
    result.ledger.check()
    assert len(result.ledger.calls) == len(written) == len(model_calls(spans))

    for row in result.rows:
        lengths = {len(row.token_ids), len(row.loss_mask), len(row.logprobs)}
        assert len(lengths) == 1
        assert len(row.call_ids) == len(row.model_versions)
        sampled = [
            (token, logprob)
            for token, mask, logprob in zip(row.token_ids, row.loss_mask, row.logprobs, strict=True)
            if mask
        ]
        expected = []
        for call_id in row.call_ids:
            spec, logprobs = written[row.attempt_id, call_id]
            assert spec.lacks == ""
            assert spec.agent == row.agent_name
            expected += zip(spec.sampled, logprobs, strict=True)
        assert sampled == expected
        assert max_length is None or len(row.token_ids) <= max_length
        assert all(p == 0.0 for p, m in zip(row.logprobs, row.loss_mask, strict=True) if not m)


@given(st.lists(specs, min_size=1, max_size=6))
def test_calls_of_one_agent_share_a_row_exactly_when_prompts_go_on(
    new_trace_factory, calls
) -> None:
    for spec in calls:
        spec.agent, spec.lacks, spec.attempt = "a", "", 1
    spans, written = write(new_trace_factory, calls)
    rows = TraceToRows().adapt(spans).rows
    wholes: list[list[int]] = []
    has_break: list[bool] = []
    for span in [span for span in spans if (span.attempt_id, span.span_id) in written]:
        prompt = list(span.attributes["prompt_token_ids"])
        begun = [n for n, whole in enumerate(wholes) if prompt[: len(whole)] == whole]
        if not begun:
            has_break.append(any(whole[0] == prompt[0] for whole in wholes))
            begun = [len(wholes)]
            wholes.append([])
        longest = max(begun, key=lambda n: (len(wholes[n]), n))
        wholes[longest] = prompt + list(span.attributes["response_token_ids"])
    assert [row.token_ids for row in rows] == wholes
    assert [row.row_break is not None for row in rows] == has_break
