"""Answers that were cut off, that say nothing, or that call a tool wrongly: seen, and as asked."""

import json

import pytest

from agl.semconv import ModelCallAttributes as Key
from agl.types import Rollout
from agl_adapters import TraceToChats, TraceToRows
from agl_learning.collect.results import Collected, Ended
from agl_learning.collect.step_metrics import collected_metrics
from agl_records.calls.sources import read_call

from .test_rows import settled as checked


def change(trace, number: int = -1, **attributes) -> None:
    """Of a call, by the names of ``ModelCallAttributes``."""
    attributes = {getattr(Key, name).value: value for name, value in attributes.items()}
    span = trace.spans[number]
    changed = {"attributes": {**span.attributes, **attributes}}
    trace.spans[number] = span.model_copy(update=changed)


def ended(trace, reason: str) -> None:
    """The last call ended for this reason."""
    change(trace, FINISH_REASONS=[reason])


def cut_in_the_middle(trace) -> None:
    """Three calls of one conversation; the answer to the second one was cut off."""
    trace.gateway([1], [2, 3])
    ended(trace, "stop")
    trace.gateway([1, 2, 3, 4], [5])
    ended(trace, "length")
    trace.gateway([1, 2, 3, 4, 5, 6], [7])
    ended(trace, "stop")
    trace.reward(1.0)


def settled(adapter, trace):
    return checked(adapter.adapt(trace.spans))


def test_truncated_answers_are_trained_unless_told_otherwise_and_rows_say_so(trace) -> None:
    cut_in_the_middle(trace)
    (row,) = settled(TraceToRows(), trace).rows
    assert row.loss_mask == [0, 1, 1, 0, 1, 0, 1]
    assert row.finish_reasons == ["stop", "length", "stop"]
    assert row.only([1, 2]).finish_reasons == ["length", "stop"]


def test_masked_answers_are_given_tokens_of_a_row_that_goes_on(trace) -> None:
    cut_in_the_middle(trace)
    result = settled(TraceToRows(truncated="mask"), trace)
    (row,) = result.rows
    assert row.token_ids == [1, 2, 3, 4, 5, 6, 7]
    assert row.loss_mask == [0, 1, 1, 0, 0, 0, 1]
    assert row.logprobs == [0.0, -0.5, -0.5, 0.0, 0.0, 0.0, -0.5]
    assert row.finish_reasons == ["stop", "stop"]
    assert result.ledger.reasons() == {"truncated": 1}


def test_exclude_trains_nothing_of_an_attempt_with_a_truncated_answer(trace) -> None:
    cut_in_the_middle(trace)
    for adapter in (TraceToRows(truncated="exclude"), TraceToChats(truncated="exclude")):
        result = settled(adapter, trace)
        assert (result.rows, result.ledger.reasons()) == ([], {"truncated": 3})
        assert trace.spans[1].span_id in result.ledger.exclusions[0].detail


@pytest.mark.parametrize("truncated", ["train", "mask", "exclude"])
@pytest.mark.parametrize("adapter", [TraceToRows, TraceToChats])
def test_one_answer_that_was_cut_off_counts_as_one_under_each_option(trace, adapter, truncated):
    cut_in_the_middle(trace)
    result = settled(adapter(truncated=truncated), trace)
    rollout = Rollout(rollout_id="ro-1", input=None, start_time=0.0, status="succeeded")
    collected = Collected([Ended(rollout, 0, 1.0, result.rows)], result.ledger, 0.0)
    assert collected_metrics(collected)["calls/truncated"] == 1


def test_the_answers_of_other_agents_may_be_cut_off(trace) -> None:
    trace.gateway([1], [2], agent="writer")
    trace.gateway([1], [2], agent="critic")
    ended(trace, "length")
    trace.reward(1.0)
    result = settled(TraceToRows("writer", truncated="exclude"), trace)
    assert result.ledger.reasons() == {"agent_not_selected": 1}
    assert len(result.rows) == 1


def test_in_conversations_a_masked_answer_is_a_given_one(trace) -> None:
    first = [{"role": "user", "content": "hi"}]
    second = [*first, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "go on"}]
    trace.gateway([1], [2], messages=first)
    ended(trace, "length")
    trace.gateway([1], [2], messages=second)
    ended(trace, "stop")
    trace.reward(1.0)
    result = settled(TraceToChats(truncated="mask"), trace)
    (row,) = result.rows
    assert (row.answers, len(row.messages), row.finish_reasons) == ([3], 4, ["stop"])
    assert result.ledger.reasons() == {"truncated": 1}


FUNCTIONS = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]


@pytest.mark.parametrize(
    ("name", "arguments", "offered", "problem"),
    [
        *(("f", one, FUNCTIONS, "broken_tool_call") for one in ('{"a": ', "[1]", '{"a":1}{"b":2}')),
        *(("f", one, FUNCTIONS, None) for one in ("", "{}", '{"a": [1]}', None)),
        ("fg", "{}", FUNCTIONS, "unknown_tool"),
        ("", "{}", [], "broken_tool_call"),
        ("g", "{}", [{"type": "custom", "custom": {"name": "g"}}], None),
        ("h", "{}", [], None),  # who recorded it may keep no tools
        ("h", "{}", [*FUNCTIONS, {"type": "web_search"}], None),
    ],
)
def test_wrong_calls_of_tools_are_marked_and_left_out_of_text(
    trace, name: str, arguments: str | None, offered: list, problem: str | None
) -> None:
    call = {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}
    trace.gateway([1], [2])
    ended(trace, "tool_calls")
    said = json.dumps([{"role": "assistant", "content": None, "tool_calls": [call]}])
    change(trace, OUTPUT_MESSAGES=said, TOOL_DEFINITIONS=json.dumps(offered))
    trace.reward(1.0)
    (row,) = settled(TraceToRows(), trace).rows
    assert row.tool_problems == [problem]
    excluded = {} if problem is None else {problem: 1}
    for strict in (TraceToRows(wrong_tool_calls="exclude"), TraceToChats()):
        assert settled(strict, trace).ledger.reasons() == excluded
    assert len(settled(TraceToChats(wrong_tool_calls="train"), trace).rows) == 1


def test_an_answer_without_a_token_is_no_fault_of_the_server(trace) -> None:
    trace.gateway([1], [2])
    change(trace, RESPONSE_TOKEN_IDS=[])
    trace.reward(1.0)
    assert settled(TraceToRows(), trace).ledger.reasons() == {"empty_answer": 1}


def test_azures_filter_results_are_no_messages(trace) -> None:
    span = trace.flat("c-1", extra={"gen_ai.prompt.prompt_filter_results": "[{}]"})
    call = read_call(span)
    assert call is not None
    assert call.messages == [{"role": "user", "content": "hi"}]


def several(trace) -> list:
    """Two answers to one request, as others than the gateway record them."""
    answers = [{"role": "assistant", "content": text} for text in ("bad", "good")]
    flat, weave, choices = {}, {}, []
    for n, said in enumerate(answers):
        choices.append({"index": n, "message": said, "finish_reason": "stop", "token_ids": [n + 5]})
        for key, value in {**said, "finish_reason": "stop"}.items():
            flat[f"gen_ai.completion.{n}.{key}"] = value
        choice = f"agentlightning.operation.output.choices.{n}"
        weave |= {f"{choice}.message.content": said["content"], f"{choice}.finish_reason": "stop"}
    listed = {"gen_ai.operation.name": "chat", Key.OUTPUT_MESSAGES.value: json.dumps(answers)}
    listed[Key.FINISH_REASONS.value] = ["stop", "stop"]
    whole = json.dumps({"id": "c", "choices": choices})
    inference = {"openinference.span.kind": "LLM", "output.value": whole}
    raw = {"llm.hosted_vllm.choices": repr(choices), "llm.hosted_vllm.id": "c"}
    return [
        trace.flat("c-1", extra=flat),
        trace.span("chat", listed),
        trace.span("ChatCompletion", inference),
        trace.span("agentlightning.operation", weave),
        trace.span("raw_gen_ai_request", raw),
    ]


def test_every_reader_knows_several_answers_and_prefers_none(trace) -> None:
    for span in several(trace):
        call = read_call(span)
        assert call is not None
        assert [c.response["content"] for c in call.choices if c.response] == ["bad", "good"]
        assert (call.response, call.response_token_ids, call.finish_reason) == (None, None, None)
        assert [part.call_id for part in call.parts()] == [f"{span.span_id}#0", f"{span.span_id}#1"]


@pytest.mark.parametrize(
    "reason", ["length", "max_tokens", "MAX_TOKENS", "FinishReason.MAX_TOKENS", "max_output_tokens"]
)
def test_every_providers_word_for_the_limit_is_read_as_one(trace, reason: str) -> None:
    trace.gateway([1], [2])
    ended(trace, reason)
    trace.reward(1.0)
    assert read_call(trace.spans[0]).finish_reason == "length"
    result = settled(TraceToRows(truncated="mask"), trace)
    assert (result.rows, result.ledger.reasons()) == ([], {"truncated": 1})


@pytest.mark.parametrize(("truncated", "rows"), [("train", 1), ("mask", 0), ("exclude", 0)])
def test_an_answer_that_was_not_used_is_that_and_not_truncated(trace, truncated, rows) -> None:
    trace.gateway([1], [2])
    ended(trace, "max_tokens")
    span = trace.spans[0]
    more = {
        # The same twice: the first of them is taken for the one that was used.
        Key.OUTPUT_MESSAGES.value: json.dumps([{"role": "assistant", "content": "yo"}] * 2),
        Key.FINISH_REASONS.value: ["max_tokens", "max_tokens"],
        "agentlightning.choice.1.token_ids": [2],
        "agentlightning.choice.1.logprobs": [-0.5],
    }
    trace.spans[0] = span.model_copy(update={"attributes": {**span.attributes, **more}})
    trace.reward(1.0)
    result = settled(TraceToRows(truncated=truncated), trace)
    assert len(result.rows) == rows
    cut = {} if rows else {"truncated": 1}
    assert result.ledger.reasons() == {"unused_choice": 1, **cut}
