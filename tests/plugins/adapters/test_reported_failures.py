"""What people reported as "the trainer saw nothing": each has a code of its own and a sentence."""

import json

import pytest

from agl.types import Span
from agl_adapters import TraceToRows
from agl_records.calls.sources import by_scope

from .test_rows import attempt, settled


def why(trace_or_spans, kind="call", attempts=None, **options) -> tuple[str, str]:
    """Code and sentence of the one exclusion of that kind; the ledger balances."""
    spans = getattr(trace_or_spans, "spans", trace_or_spans)
    result = TraceToRows(**options).adapt(spans, attempts=attempts)
    settled(result)
    (found,) = [e for e in result.ledger.exclusions if e.kind == kind]
    return found.reason, found.detail


@pytest.mark.parametrize(
    ("attributes", "keys"),
    [
        ({"llm.vendor": "x", "completion_text": "yes"}, "completion_text, llm.vendor"),
        ({"gen_ai.request.model": "qwen", "their.prompt": "hi"}, "gen_ai.request.model, their.p"),
    ],
)
def test_spans_that_no_reader_knows_are_counted_by_scope(trace, attributes, keys) -> None:
    agent = trace.span("agent", {"agent.name": "writer", "gen_ai.operation.name": "invoke_agent"})
    span = trace.span("my_framework.llm", attributes, parent_id=agent.span_id)
    trace.spans[1] = Span.model_validate({**span.model_dump(), "scope": "theirs"})
    trace.reward(1.0)
    reason, sentence = why(trace)
    assert reason == "unrecognised_span"
    assert sentence.startswith(
        "spans of scope 'theirs' look like model calls; no reader knows where they have their "
        f"messages, among {keys}"
    )
    (said,) = by_scope([sentence, sentence.replace(keys, "others")])
    assert said == f"2 {sentence}"


def test_an_unknown_span_around_a_known_call_is_no_call_of_its_own(trace) -> None:
    outer = trace.span("framework.llm", {"llm.vendor": "x"})
    trace.gateway([1], [2], parent_id=outer.span_id)
    trace.reward(1.0)
    assert len(TraceToRows().adapt(trace.spans).ledger.calls) == 1


def test_structured_output_under_another_span_name(trace) -> None:
    span = {
        "gen_ai.operation.name": "chat",
        "gen_ai.output.type": "json",
        "gen_ai.input.messages": json.dumps([{"role": "user", "content": "hi"}]),
        "gen_ai.output.messages": json.dumps([{"role": "assistant", "content": '{"a": 1}'}]),
    }
    trace.span("openai.beta.chat.completions.parse", span)
    trace.reward(1.0)
    assert why(trace) == (
        "structured_output",
        "span 'openai.beta.chat.completions.parse' has the parsed object and no token ids; send "
        "the call through the gateway",
    )


def test_a_reward_emitted_before_the_call(trace) -> None:
    trace.reward(1.0)
    trace.gateway([1], [2])
    assert why(trace, kind="reward", credit="per_call") == (
        "reward_before_call",
        "it came before the answer to the first call",
    )
    assert why(trace, credit="per_call") == (
        "no_reward",
        "no reward links to this call or follows it before the next; a reward came before any call",
    )


ROLE = "expected a message with a role, got the keys ['content']"
CRITIC = {"agent": "critic"}


@pytest.mark.parametrize(
    ("calls", "rewards", "options", "reason", "sentence"),
    [
        ([{"messages": [{"content": "hi"}]}], 1, {}, "malformed_message", ROLE),
        ([{}], 2, {"kind": "reward"}, "superseded_reward", "rule 'final' took a later reward of"),
        ([CRITIC, {}], 1, {"agent_match": "^write"}, "agent_not_selected", "agent is 'critic'"),
        ([], 1, {"kind": "reward"}, "no_calls", ""),
        ([], 1, {"kind": "rollout"}, "no_calls", ""),
    ],
    ids=["role", "two rewards", "agent", "reward alone", "no calls"],
)
def test_each_code_has_its_sentence(trace, calls, rewards, options, reason, sentence) -> None:
    for about in calls:
        trace.gateway([1], [2], **{"agent": "writer", **about})
    for _ in range(rewards):
        trace.reward(1.0)
    found, said = why(trace, **options)
    assert (found, sentence in said) == (reason, True), said


@pytest.mark.parametrize(
    ("status", "reason", "sentence"),
    [
        ("succeeded", "no_calls", "no model call of its attempt was recorded"),
        ("timeout", "failed_attempt", "no attempt succeeded; the status of this one: timeout"),
    ],
)
def test_a_rollout_without_calls_is_accounted_for(status, reason, sentence) -> None:
    found = why([], kind="rollout", attempts=[attempt("at-1", 1, status)])
    assert found == (reason, sentence)
