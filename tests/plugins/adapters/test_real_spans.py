"""Spans that real libraries recorded (see ``fixtures/make_spans.py``) read alike."""

import json
from pathlib import Path

import pytest

from agl.types import Span, TraceStatus
from agl_adapters import TracerTraceToTriplet, TraceToMessages, TraceToRows
from agl_records.calls.reader import model_calls

from .test_rows import settled

FIXTURES = Path(__file__).parent / "fixtures"
LIBRARIES = {
    "agentops": (None, {"no_token_ids": 4}),
    "litellm": ("litellm_request", {"no_token_ids": 4}),
    "openinference": ("ChatCompletion", {"no_reward": 4}),
    "openllmetry": (r"openai\.chat", {"no_token_ids": 3, "structured_output": 1}),
    "weave": (None, {"no_reward": 4}),
}
"""The name of its calls, unless it is the usual one, and why those that succeeded train nothing."""
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
    roles = [message["role"] for message in answered.messages]
    assert roles == ["system", "user", "assistant", "tool"]
    call = answered.messages[2]["tool_calls"][0]
    assert (call["id"], call["function"]) == ("call_1", FUNCTION)
    assert answered.messages[3] == {"role": "tool", "tool_call_id": "call_1", "content": "a key"}
    assert answered.response["content"] == "In the kitchen."
    assert image.messages[0]["content"][1]["image_url"]["url"] == "https://example.com/a.png"
    assert json.loads(structured.response["content"]) == {"room": "kitchen"}
    assert "the prompt is too long" in failed.error
    assert [call.error for call in calls[:4]] == [None] * 4
    assert {call.model for call in calls[:4]} == {"qwen-served"}
    if library == "agentops":  # its spans have none, also none below; there is nothing to read
        assert asked.response == {"role": "assistant", "content": ""}
    else:
        assert asked.response["tool_calls"][0]["function"] == FUNCTION
    if library in ("openinference", "weave"):  # they have the tokens of the server's answer
        assert (asked.prompt_token_ids, asked.response_token_ids) == ([1, 2, 3], [4, 5])
        assert (asked.response_logprobs, asked.response_id) == ([-0.5, -0.5], "chatcmpl-20")


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_call_becomes_messages_a_triplet_and_an_account(library) -> None:
    spans, (pattern, excluded) = recorded(library), LIBRARIES[library]
    entries = TraceToMessages().adapt(spans)
    assert len(entries) == 5
    assert [entry["messages"][-1]["role"] for entry in entries] == ["assistant"] * 4 + ["user"]
    triplets = TracerTraceToTriplet(**({"llm_call_match": pattern} if pattern else {})).adapt(spans)
    assert len(triplets) == 4  # of those that succeeded
    assert triplets[2].prompt["image_urls"] == ["https://example.com/a.png"]
    ledger = settled(TraceToRows().adapt(spans)).ledger
    assert len(ledger.calls) == 5
    assert ledger.reasons() == {"model_error": 1, **excluded}
