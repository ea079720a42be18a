"""Spans that real libraries recorded (see ``fixtures/make_spans.py``) read alike."""

import json
from pathlib import Path

import pytest

from agl.types import Span, TraceStatus
from agl_adapters import TracerTraceToTriplet, TraceToMessages, TraceToRows
from agl_records.calls.reader import model_calls

FIXTURES = Path(__file__).parent / "fixtures"
LIBRARIES = ["agentops", "litellm", "openinference", "openllmetry", "weave"]
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Where is it?"}
FUNCTION = {"name": "look", "arguments": '{"room": "kitchen"}'}


def recorded(library: str) -> list[Span]:
    """The spans of a fixture, as the store would have them."""
    found = json.loads((FIXTURES / f"{library}.json").read_text())["spans"]
    return [
        Span.from_attributes(
            rollout_id="ro-1",
            attempt_id="at-1",
            sequence_id=number,
            **{
                **span,
                "status": TraceStatus(**span["status"]),
                # As ``Span.from_opentelemetry`` does with what AgentOps sets.
                "attributes": {k: v for k, v in span["attributes"].items() if v is not None},
            },
        )
        for number, span in enumerate(found, 1)
    ]


@pytest.mark.parametrize("library", LIBRARIES)
def test_five_calls_are_read_with_messages_tools_and_errors(library) -> None:
    calls = model_calls(recorded(library))
    asked, answered, image, structured, failed = calls
    assert asked.messages == [SYSTEM, USER]
    assert [tool["function"]["name"] for tool in asked.tools] == ["look"]
    assert asked.finish_reason == "tool_calls"
    assert [message["role"] for message in answered.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
    ]
    call = answered.messages[2]["tool_calls"][0]
    assert (call["id"], call["function"]) == ("call_1", FUNCTION)
    assert answered.messages[3] == {"role": "tool", "tool_call_id": "call_1", "content": "a key"}
    assert answered.response["content"] == "In the kitchen."
    assert image.messages[0]["content"][1]["image_url"]["url"] == "https://example.com/a.png"
    assert json.loads(structured.response["content"]) == {"room": "kitchen"}
    assert "the prompt is too long" in failed.error
    assert [call.error for call in calls[:4]] == [None] * 4
    assert {call.model for call in calls[:4]} == {"qwen-served"}


@pytest.mark.parametrize("library", ["litellm", "openinference", "openllmetry", "weave"])
def test_the_answer_has_the_tool_call(library) -> None:
    asked = model_calls(recorded(library))[0]
    assert asked.response["tool_calls"][0]["function"] == FUNCTION


def test_agentops_records_no_tool_call_of_an_answer() -> None:
    # Its spans have none, also none below; there is nothing to read.
    spans = recorded("agentops")
    assert not any("completion.0.tool_calls" in key for s in spans for key in s.attributes)
    assert model_calls(spans)[0].response == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("library", ["openinference", "weave"])
def test_these_spans_have_the_tokens_of_the_servers_answer(library) -> None:
    call = model_calls(recorded(library))[0]
    assert call.prompt_token_ids == [1, 2, 3]
    assert call.response_token_ids == [4, 5]
    assert call.response_logprobs == [-0.5, -0.5]
    assert call.response_id == "chatcmpl-20"


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_call_becomes_messages(library) -> None:
    entries = TraceToMessages().adapt(recorded(library))
    assert len(entries) == 5
    assert [entry["messages"][-1]["role"] for entry in entries] == ["assistant"] * 4 + ["user"]


@pytest.mark.parametrize(
    ("library", "pattern"),
    [
        ("agentops", None),
        ("litellm", "litellm_request"),
        ("openinference", "ChatCompletion"),
        ("openllmetry", r"openai\.chat"),
        ("weave", None),
    ],
)
def test_every_call_that_succeeded_becomes_a_triplet(library, pattern) -> None:
    options = {} if pattern is None else {"llm_call_match": pattern}
    triplets = TracerTraceToTriplet(**options).adapt(recorded(library))
    assert len(triplets) == 4
    assert triplets[2].prompt["image_urls"] == ["https://example.com/a.png"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_call_is_in_the_ledger(library) -> None:
    result = TraceToRows().adapt(recorded(library))
    for row in result.rows:
        result.ledger.train(row)
    result.ledger.check()
    assert len(result.ledger.calls) == 5
    reasons = result.ledger.reasons()
    assert reasons["model_error"] == 1
    if library in ("openinference", "weave"):
        assert reasons == {"model_error": 1, "no_reward": 4}
    elif library == "openllmetry":
        assert reasons == {"model_error": 1, "no_token_ids": 3, "structured_output": 1}
    else:
        assert reasons == {"model_error": 1, "no_token_ids": 4}
