"""Real agents before a server that answers in odd shapes: they see what is recorded, and go on.

The shapes are those of docs/reference/answers.md and of the reports that it names.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest
from frameworks import FRAMEWORKS
from gateway_run import run_at_gateway
from scene import ANSWER, reply

from agl_testing.echo_llm import RawReply

UNSTREAMED = (
    *("OpenAI SDK, chat", "OpenAI SDK, Responses", "Anthropic SDK", "LangChain agent"),
    "Pydantic AI",
)
STREAMED = ("Claude Code", "Codex")
THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}

Pieces = list[dict[str, Any]]


def call_pieces(change: Callable[[dict[str, Any], str], Pieces]) -> Callable[[Any], Pieces]:
    """Deltas of a message of which ``change`` makes the pieces of a call."""

    def deltas(message: Any) -> Pieces:
        calls = message.get("tool_calls") or ()
        made = [change(call["function"], call["id"]) for call in calls]
        return [{"tool_calls": [piece]} for pieces in made for piece in pieces] or [
            {"content": message["content"]}
        ]

    return deltas


def without_numbers(said: dict[str, Any], call_id: str) -> Pieces:
    first, rest = said["arguments"][:4], said["arguments"][4:]
    return [
        {"id": call_id, "function": {"name": said["name"], "arguments": first}},
        {"function": {"arguments": rest}},
    ]


def with_name_in_each(said: dict[str, Any], call_id: str) -> Pieces:
    first, rest = said["arguments"][:4], said["arguments"][4:]
    name = {"name": said["name"]}
    return [{"index": 0, "function": {**name, "arguments": one}} for one in (first, rest)]


def after_an_object(said: dict[str, Any], call_id: str) -> Pieces:
    return [
        {"index": 0, "id": call_id, "function": {"name": said["name"], "arguments": {}}},
        {"index": 0, "function": {"arguments": said["arguments"]}},
    ]


def as_an_object(said: dict[str, Any], call_id: str) -> Pieces:
    arguments = json.loads(said["arguments"])
    return [{"index": 7, "function": {"name": said["name"], "arguments": arguments}}]


def as_parts(message: Any) -> Pieces:
    text = {"type": "text", "text": message["content"] or ""}
    return [{**message, "content": [THOUGHT, text]}]


OF_STREAMS = {
    "calls without numbers": call_pieces(without_numbers),
    "a name in each piece": call_pieces(with_name_in_each),
    "an empty object, then arguments": call_pieces(after_an_object),
}
SHAPES = {"an object as arguments": call_pieces(as_an_object), "parts as content": as_parts}
CASES = [
    *((name, shape) for name in (*UNSTREAMED, *STREAMED) for shape in SHAPES),
    *((name, shape) for name in STREAMED for shape in OF_STREAMS),
]


def odd(request: dict[str, Any], deltas: Callable[[Any], Pieces]) -> RawReply:
    """The scene's answer in this shape; a stream has an index that changes, and ends twice."""
    said = reply(request)
    message = {"content": said} if isinstance(said, str) else said
    end = "tool_calls" if message.get("tool_calls") else "stop"
    head = {"id": "c", "created": 1, "model": "echo"}
    if not request.get("stream"):
        (delta,) = deltas(message)
        message = {"role": "assistant", **message, **delta}
        choice = {"index": 0, "message": message, "finish_reason": end}
        whole = {**head, "object": "chat.completion", "choices": [choice]}
        return RawReply(200, json.dumps(whole).encode())
    parts = [{"index": 0, "delta": {"role": "assistant"}}]
    parts += [{"index": 9**n, "delta": delta} for n, delta in enumerate(deltas(message))]
    parts += [{"index": 0, "delta": {}, "finish_reason": reason} for reason in (end, "length")]
    chunks = [{**head, "object": "chat.completion.chunk", "choices": [part]} for part in parts]
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return RawReply(200, "".join([*lines, "data: [DONE]\n\n"]).encode(), "text/event-stream")


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("name", "shape"), CASES)
async def test_an_agent_goes_on_after_an_odd_answer(memory_store, once, name, shape):
    framework, deltas = FRAMEWORKS[name], (SHAPES | OF_STREAMS)[shape]
    if missing := framework.missing():
        pytest.skip(f"needs {missing}")
    agent = framework.load()
    ran = await run_at_gateway(
        memory_store, lambda request: odd(request, deltas), lambda url, _: agent(url)
    )
    assert ANSWER in ran.text
    assert [(call.error, call.answer_problem, call.tool_problem) for call in ran.calls] == [
        (None, None, None)
    ] * framework.calls
