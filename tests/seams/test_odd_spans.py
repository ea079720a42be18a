"""Whatever an agent writes into a span, it ends no training: it costs that call, or that rollout.

Every attribute that a reader looks at gets every odd value, in spans of every form, through the
store, the collector and the adapter of rows.
"""

import json
import logging
from typing import Any

import pytest

import agl
from agl.emitter import reward_attributes
from agl.semconv import AGL_ANNOTATION, AGL_OBJECT, MODEL_CALL_SPAN, ModelCallAttributes as Key
from agl_learning.collect.step_metrics import why_nothing
from agl_records.training_data import ModelCall, TrainedModel
from agl_runs.failures import infrastructure_failure

from .collecting import collect, settled

pytest.importorskip("agl_adapters")

POLICY = TrainedModel(name="policy", vocabulary_size=10)


def messages(role: str, text: str) -> str:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])


CALL: dict[str, Any] = {
    **{Key.OPERATION: "chat", Key.REQUEST_MODEL: "policy", Key.FINISH_REASONS: ["stop"]},
    Key.INPUT_MESSAGES: messages("user", "hi"),
    Key.OUTPUT_MESSAGES: messages("assistant", "yo"),
    **{Key.PROMPT_TOKEN_IDS: [1, 2], Key.RESPONSE_TOKEN_IDS: [3, 4]},
    Key.RESPONSE_LOGPROBS: [-0.1, -0.2],
}
TWO_ANSWERS: dict[str, Any] = {
    **CALL,
    Key.OUTPUT_MESSAGES: json.dumps([{"role": "assistant", "content": "yo"}] * 2),
    Key.FINISH_REASONS: ["stop", "stop"],
    "agentlightning.choice.1.token_ids": [5],
    "agentlightning.choice.1.logprobs": [-0.1],
}
OPENINFERENCE: dict[str, Any] = {
    "openinference.span.kind": "LLM",
    "llm.model_name": "policy",
    "llm.input_messages.0.message.role": "user",
    "llm.output_messages.0.message.role": "assistant",
}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "gateway": (MODEL_CALL_SPAN, CALL),
    "two answers": (MODEL_CALL_SPAN, TWO_ANSWERS),
    "by an agent": (MODEL_CALL_SPAN, {k: v for k, v in CALL.items() if k != Key.OPERATION}),
    "another's": ("chat policy", CALL),
    "openinference": ("LLM", OPENINFERENCE),
    "litellm": ("litellm_request", CALL),
    "raw": ("raw_gen_ai_request", {"llm.x.messages": "[]", "llm.x.choices": "[{}]"}),
    "keyed": ("generation", {"langfuse.observation.type": "generation", "gen_ai.prompt": "hi"}),
    "vercel": ("ai.generateText.doGenerate", {"ai.prompt.messages": "[]", "ai.response.text": ""}),
    "annotation": (AGL_ANNOTATION, reward_attributes(0.5)),
    "object": (AGL_OBJECT, {"agentlightning.object.json": '"yo"'}),
}
KEYS = [
    *map(str, Key),
    *TWO_ANSWERS,
    *OPENINFERENCE,
    *("agentlightning.choice.0.token_ids", "agentlightning.choice.999999999.token_ids"),
    *("agentlightning.choice.x.token_ids", "agentlightning.chosen_choice"),
    *("agentlightning.link.0.key_match", "agentlightning.link.0.value_match"),
    *("agentlightning.link.x", "agentlightning.tag.0"),
    *("agentlightning.reward", "agentlightning.reward.0.name", "agentlightning.reward.0.value"),
    *("agentlightning.reward.1.value", "agentlightning.reward.x.value", "reward"),
    *("agentlightning.operation.input", "agentlightning.operation.output"),
    *("agentlightning.operation.output.object", "agentlightning.operation.output.choices.0"),
    *("agentlightning.operation.output.choices.x.message", "agentlightning.object.json"),
    *("agentlightning.object.literal", "agentlightning.object.type", "agentlightning.message.body"),
    *("agentops.task.output", "agentops.entity.output", "weave.kind", "agent.name"),
    *("gen_ai.prompt.0.role", "gen_ai.prompt.x.role", "gen_ai.prompt.0.tool_calls"),
    *("gen_ai.completion.0.role", "gen_ai.completion.0.tool_calls", "gen_ai.completion.1.content"),
    *("gen_ai.completion.0.function_call.name", "gen_ai.completion.0.finish_reason"),
    *("gen_ai.request.functions.0.parameters", "gen_ai.system_instructions", "logprobs.content"),
    *("llm.x.messages", "llm.x.choices", "llm.x.model", "llm.x.tools", "llm.finish_reason"),
    *("llm.output_messages.0.message.tool_calls", "llm.tools.0.tool.json_schema", "output.value"),
    *("langfuse.observation.input", "langfuse.observation.output", "gen_ai.completion", "events"),
    *("ai.prompt.messages", "ai.prompt.tools", "ai.response.toolCalls", "ai.response.finishReason"),
    *("mlflow.spanInputs", "request_data", "response_data", "gen_ai.tool.definitions"),
    *("http.response.status_code", "error.message", "exception.message"),
]
TOOL_CALLS = ["3", '"x"', '["x"]', '[{"function": "f"}]', '[{"function": {"arguments": 3}}]', "{}"]
ODD: list[Any] = [
    *([], [""], ["a", "b"], [True], [-1], [11, 12], [2**40], [1.5], [float("nan")], [float("inf")]),
    *("", "x", "\0", json.loads('"\\ud83d"'), "[", "[1]", "[[]]", "{}", "null", "NaN", "9" * 5000),
    *(b"\xff", '{"choices": 1}', '{"choices": [1]}', '{"type": "reward", "value": "x"}'),
    *("[" * 5000, '[{"role": 1}]', '[{"role": "user", "parts": 1}]', '[{"parts": [1]}]'),
    *(f'[{{"role": "assistant", "tool_calls": {calls}}}]' for calls in TOOL_CALLS),
    *('[{"role": "assistant", "content": {"a": 1}}]', '[{"role": "user", "content": [1, null]}]'),
    *(0, -1, True, 10**18, 10**400, 1e308, float("nan"), float("inf"), "infrastructure", "request"),
    *(None, [["nested"]], {"a": 1}, [None, 1]),
]


def spans_of(form: str, key: str) -> list[agl.Span]:
    """A span of this form for each odd value of the attribute that a span can have."""
    name, attributes = FORMS[form]
    spans: list[agl.Span] = []
    for value in ODD:
        try:
            span = agl.Span.from_attributes(name=name, attributes={**attributes, key: value})
        except ValueError:
            continue  # no span can have it
        spans.append(span)
    return spans


def good(reward: float = 1.0) -> list[agl.Span]:
    """A call that can be trained, and its reward."""
    call = agl.Span.from_attributes(name=MODEL_CALL_SPAN, attributes=CALL)
    end = agl.Span.from_attributes(name=AGL_ANNOTATION, attributes=reward_attributes(reward))
    return [call, end]


@pytest.mark.parametrize("form", FORMS)
async def test_no_value_of_any_attribute_ends_the_training(form: str) -> None:
    @agl.rollout
    async def agent(key: str) -> list[agl.Span]:
        return [*(spans_of(form, key) if key else []), *good()]

    collected = await collect(agent, model=POLICY, tasks=["", *dict.fromkeys(KEYS)])
    assert {one.rollout.status for one in collected.ended} == {"succeeded"}
    # The adapter reads, or excludes, each call by itself: none costs its whole rollout.
    unread = [one.unusable for one in collected.ended if one.unusable is not None]
    assert [why for reason, why in unread if reason == "malformed"] == []
    plain = collected.ended[0]
    assert (len(plain.rows), plain.reward) == (1, 1.0)
    settled(collected)


async def test_what_the_adapter_cannot_read_costs_its_rollout_only(caplog) -> None:
    class Adapter(agl.TraceToRows):
        def adapt(self, source: Any, /, attempts: Any = None, model: Any = None) -> Any:
            if any(span.name == "bad" for span in source):
                raise TypeError("unhashable type: 'list'")
            return super().adapt(source, attempts=attempts, model=model)

    @agl.rollout
    async def agent(task: str) -> list[agl.Span]:
        return [agl.Span.from_attributes(name=task, attributes={}), *good()]

    with caplog.at_level(logging.WARNING, "agl.learning"):
        given = {"adapter": Adapter(), "tasks": ["bad", "fine", "fine"]}
        collected = await collect(agent, model=POLICY, **given)
    bad = collected.ended[0].rollout.rollout_id
    why = "its spans cannot be read: TypeError: unhashable type: 'list'"
    assert [len(one.rows) for one in collected.ended] == [0, 1, 1]
    assert collected.ended[0].unusable == ("malformed", why)
    (one,) = collected.ledger.exclusions
    assert (one.rollout_id, one.reason, one.detail) == (bad, "malformed", why)
    assert why in why_nothing(collected)
    (said,) = caplog.records
    assert (said.name, bad in said.message, why in said.message) == ("agl.learning", True, True)


def test_an_answer_whose_tool_calls_are_none_is_broken() -> None:
    ids = {"call_id": "c", "rollout_id": "r", "attempt_id": "a", "sequence_id": 1}
    for calls in (3, "x", {"a": 1}, ["x"], [{"function": {"arguments": "[" * 5000}}]):
        problem = ModelCall(**ids, response={"tool_calls": calls}).tool_problem
        assert problem[0] == "broken_tool_call"
    assert ModelCall(**ids, response={"tool_calls": []}).tool_problem is None


def call(number: int, **attributes: Any) -> agl.Span:
    given = {**CALL, **{str(Key[name]): value for name, value in attributes.items()}}
    times = {"start_time": 100.0 - number, "end_time": 100.5 - number}
    return agl.Span.from_attributes(
        name=MODEL_CALL_SPAN, attributes=given, sequence_id=number, **times
    )


FAILED = {"ERROR": "503", "ERROR_KIND": "infrastructure"}


def test_which_call_came_later_is_told_by_numbers_and_not_by_clocks() -> None:
    assert infrastructure_failure([call(1, **FAILED), call(2)]) is None
    assert infrastructure_failure([call(2), call(1, **FAILED)]) is None
    assert infrastructure_failure([call(1), call(2, **FAILED)]) == "503"


def test_only_what_has_the_gateways_form_says_why_a_call_failed() -> None:
    for name, operation in (("llm", "chat"), (MODEL_CALL_SPAN, None)):
        attributes = {**CALL, Key.OPERATION: operation, Key.ERROR: "x"}
        attributes[Key.ERROR_KIND] = "infrastructure"
        given = {k: v for k, v in attributes.items() if v is not None}
        span = agl.Span.from_attributes(name=name, attributes=given, sequence_id=1)
        assert infrastructure_failure([span]) is None
