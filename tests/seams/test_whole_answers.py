"""Of each shape in which servers answer: whether it is trained, and what the ledger says if not.

docs/reference/answers.md has the same table: this test compares the two.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from tests.models import entry

import agl
from agl_models.completions import AnswerWriter, ChatRequest, Piece
from agl_testing.echo_llm import EchoLLM, RawReply

pytest.importorskip("agl_gateway")
TraceToRows = pytest.importorskip("agl_adapters").TraceToRows

PAGE = Path(__file__).parents[2] / "docs/reference/answers.md"
TOOL = {"type": "object", "properties": {"a": {"type": "integer"}}}
USER = [{"role": "user", "content": "go"}]
CHAT_TOOL = {"type": "function", "function": {"name": "f", "parameters": TOOL}}
REQUESTS: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": USER, "tools": [CHAT_TOOL]},
    "messages": {"messages": USER, "max_tokens": 9, "tools": [{"name": "f", "input_schema": TOOL}]},
    "responses": {
        "input": "go",
        "tools": [{"type": "function", "name": "f", "parameters": TOOL, "strict": False}],
    },
}


def call(name: str = "f", arguments: Any = '{"a":1}') -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


def whole(*calls: dict[str, Any], content: Any = "yes", **choice: Any) -> dict[str, Any]:
    """An answer of four tokens, as vLLM gives it to ``return_token_ids``."""
    usage, prompt = choice.pop("usage", 4), choice.pop("prompt_tokens", 2)
    message = {"role": "assistant", "content": content, "tool_calls": list(calls) or None}
    ids = choice.pop("prompt_token_ids", [1, 2])
    given = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    given["logprobs"] = {"content": [{"token": "x", "logprob": -0.5}] * 4}
    return {
        **{"id": "c", "model": "m", "prompt_token_ids": ids},
        "choices": [{**given, "token_ids": [5, 6, 7, 8], **choice}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": usage, "total_tokens": 2 + usage},
    }


def older(call: dict[str, Any], content: str | None = None) -> dict[str, Any]:
    answer = whole(content=content, finish_reason="stop" if content else "function_call")
    answer["choices"][0]["message"]["function_call"] = call
    return answer


def twice(answer: dict[str, Any]) -> dict[str, Any]:
    (choice,) = answer["choices"]
    other = {**choice, "index": 1, "message": {**choice["message"], "content": "no"}}
    return {**answer, "choices": [other, choice]}


STOP = {"finish_reason": "stop"}
END = {"delta": {}, **STOP}


def said(content: str, *ids: int, **choice: Any) -> dict[str, Any]:
    """A piece of a streamed choice."""
    logprobs = {"content": [{"token": "x", "logprob": -0.5}] * len(ids)}
    return {"delta": {"content": content}, "token_ids": [*ids], "logprobs": logprobs, **choice}


def in_pieces(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    """A stream of these pieces, and its usage."""
    head = {"id": "c", "model": "m"}
    chunks = [{**head, "choices": [{"index": 0, **part}]} for part in parts]
    return [chunks[0] | {"prompt_token_ids": [1, 2]}, *chunks[1:], streamed(whole())[1]]


class Crossed(NamedTuple):
    """An answer to who asked for the other kind, a stream or none."""

    answer: Any


def streamed(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The same in chunks; the last one has the usage, where it is asked for."""
    (choice,) = answer["choices"]
    message = dict(choice["message"])
    message["tool_calls"] = [
        {"index": number, **one} for number, one in enumerate(message["tool_calls"] or ())
    ]
    head = {"id": "c", "model": "m", "prompt_token_ids": answer["prompt_token_ids"]}
    chunk = {**choice, "delta": message}
    del chunk["message"]
    return [
        {**head, "choices": [chunk]},
        {"id": "c", "model": "m", "choices": [], "usage": answer["usage"]},
    ]


def ours(stream: bool, *calls: dict[str, Any]) -> bytes:
    """What the servers of agl-torch, agl-tinker and agl-unsloth write."""
    request = ChatRequest.model_validate(
        {"model": "m", "messages": USER, "logprobs": True, "return_token_ids": True}
        | {"stream": stream, "stream_options": {"include_usage": True}}
    )
    end: dict[str, Any] = {"finish_reason": "stop", "version": "3", "num_tokens": 4}
    end |= {"token_ids": [5, 6, 7, 8], "logprobs": [-0.5] * 4, "token_texts": ["x"] * 4}
    tokens = Piece(0, "yes", tool_calls=[*calls], **end)
    writer = AnswerWriter(request, "c", [1, 2])
    return writer.answer([tokens])[0]


OLDER, BROKEN = {"name": "f", "arguments": '{"a":1}'}, {"arguments": "{"}
NULL = {"content": [{"token": "x", "logprob": None}, *[{"token": "x", "logprob": -0.5}] * 3]}
SPANS = [{"version": "3", "start": 0, "end": 2}, {"version": "4", "start": 2, "end": 4}]
AND_BACK = [{"version": v, "start": n, "end": n + 1} for n, v in enumerate("3443")]
SPECIAL = {"content": [{"token": t, "logprob": -0.5} for t in ("<think>", "\n", "</s>", "</s>")]}
LOST = {"message": "Provider disconnected", "code": 502}
SHAPES: dict[str, Any] = {
    "agl: unstreamed": ours(False),
    "agl: streamed": ours(True),
    "agl: a call of a tool, streamed": ours(True, call()),
    "vLLM: unstreamed": whole(),
    "vLLM: a call of a tool, streamed": streamed(whole(call(), content=None)),
    "vLLM: ids of a streamed call of a tool dropped": streamed(
        whole(call(), content=None, token_ids=[5, 8], usage=12)
    ),
    "vLLM: weights changed meanwhile": whole(weight_versions=SPANS),
    "vLLM: weights changed, and back": whole(weight_versions=AND_BACK),
    "SGLang: unstreamed": whole(),
    "SGLang: no log-probabilities beside a parser": whole(logprobs=None),
    "SGLang: null as the first log-probability": whole(logprobs=NULL),
    "Dynamo: no id of the token that ends": whole(usage=5),
    "any: an id more than tokens": whole(usage=3),
    "any: an error beside the choices": whole() | {"error": LOST},
    "any: an error beside the choices, streamed": [streamed(whole())[0] | {"error": LOST}],
    "OpenRouter: an error in a choice": whole(error=LOST),
    "OpenRouter: an error in a choice, streamed": streamed(whole(error=LOST)),
    "any: null as a message": whole(message=None),
    "any: a number as content": whole(content=5),
    "any: a number as content, streamed": streamed(whole(content=5)),
    "any: a call of a tool without a name": whole(call("")),
    "any: a number as arguments": whole(call(arguments=5)),
    "any: a number as arguments, streamed": streamed(whole(call(arguments=5))),
    "any: arguments that are no JSON object": whole(call(arguments='{"a":1}{"a":2}')),
    "any: a tool that was not offered": whole(call("ff")),
    "LiteLLM: blocks are numbered as choices, streamed": in_pieces(
        said("y", 5, 6), said("es", 7, 8, index=1), END
    ),
    "TGI: tokens are numbered as choices, streamed": in_pieces(
        said("y", 5, 6), said("e", 7, index=1), said("s", 8, index=2, **STOP)
    ),
    "SGLang: each piece of the last step has an end, streamed": in_pieces(
        said("y", 5, 6, **STOP), said("es", 7, 8, **STOP)
    ),
    "Together: a text beside the message": whole(text="yes"),
    "Together: a text beside the message, streamed": in_pieces(
        said("y", 5, 6, text="y"), said("es", 7, 8, text="es", **STOP)
    ),
    "any: two answers in turn, one asked for, streamed": in_pieces(
        said("y", 5, 6), said("e", 7, index=1), said("s", 8), END
    ),
    "any: two answers with an end each, one asked for, streamed": in_pieces(
        said("y", 5, 6), said("es", 7, 8, index=1), END, {**END, "index": 1}
    ),
    "any: two answers, one asked for": twice(whole()),
    "any: text after its end, streamed": in_pieces(said("y", 5, 6, **STOP), said("es", 7, 8)),
    "any: token ids after its end, streamed": in_pieces(said("yes", 5, 6, 7, **STOP), said("", 8)),
    "any: no stream where one was asked for": Crossed(whole()),
    "any: a stream where none was asked for": Crossed(streamed(whole())),
    "any: an empty call of the older form": older({"name": "", "arguments": ""}, content="yes"),
    "any: null beside a function": whole({**call(), "custom": None}),
    "any: ids of another type, streamed": in_pieces(
        said("yes", 5, 6, 7, 8) | {"token_ids": 5}, END
    ),
    "any: a call of the older form": older(OLDER),
    "any: a call of the older form that is broken": older(OLDER | BROKEN),
    "any: cut off at the limit": whole(finish_reason="length"),
    "any: cut off at the limit, an id missing": whole(finish_reason="length", usage=5),
    "any: ids that are no numbers": whole(token_ids="5 6"),
    "any: no token ids": whole(token_ids=None, prompt_token_ids=None),
    "any: an unknown reason to finish": whole(finish_reason="paused"),
    "any: no reason to finish": whole(finish_reason=None),
    "any: `tool_calls` as its end, and no call": whole(finish_reason="tool_calls"),
    "any: tokens of a text, and no text": streamed(whole(content="")),
    "any: no text before a text that stops it": whole(content="", stop_reason="x"),
    "SGLang: no text before a text that stops it": streamed(whole(content="", matched_stop="x")),
    "any: 0 as the number of prompt tokens": whole(prompt_tokens=0),
    "any: only special tokens": whole(content=None, logprobs=SPECIAL),
    "any: another number of prompt tokens than ids": whole(prompt_token_ids=[1, 2, 3]),
}


async def outcome(answer: Any, path: str) -> str:
    """What becomes of the answer in training: a cell of the page."""
    is_crossed = isinstance(answer, Crossed)
    answer = answer.answer if is_crossed else answer
    is_stream = isinstance(answer, list) or (isinstance(answer, bytes) and b"data:" in answer[:5])
    if isinstance(answer, list):
        lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in answer]
        answer = "".join([*lines, "data: [DONE]\n\n"]).encode()
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    kind = "text/event-stream" if is_stream else "application/json"
    store = agl.InMemoryLightningStore()
    rollout = await store.start_rollout("task")
    with EchoLLM(lambda request: RawReply(200, body, kind)) as llm:
        proxy = agl.LLMProxy(store=store, model_list=[entry("m", llm.url)])
        await proxy.start()
        url = proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id).endpoint
        request = {"model": "m", "stream": is_stream != is_crossed, **REQUESTS[path]}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{url}/{path}", json=request) as reply,
        ):
            said = await reply.text()
        await proxy.flush()
        await proxy.stop()
    spans = list(await store.query_spans(rollout.rollout_id))
    reward = agl.emit_reward(1.0, propagate=False)
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    given = agl.Span.from_core_fields(reward, **ids).model_copy(update={"sequence_id": 9})
    result = TraceToRows().adapt([*spans, given])
    if path == "chat/completions" and is_stream:
        assert '"usage"' not in said  # it was asked for by the gateway alone
    if not result.rows:
        (reason,) = {one.reason for one in result.ledger.exclusions if one.kind == "call"}
        return f"`{reason}`"
    (row,) = result.rows
    assert row.token_ids == [1, 2, 5, 6, 7, 8]
    version = "3-4" if b'"4"' in body else "3" if b'"3"' in body else None
    assert row.model_versions == [version]
    (problem,) = row.tool_problems
    return "trained" if problem is None else f"trained, marked `{problem}`"


@pytest.mark.parametrize("shape", SHAPES)
async def test_each_shape_is_trained_or_left_out_as_the_page_says(shape: str) -> None:
    server, _, what = shape.partition(": ")
    cells = [await outcome(SHAPES[shape], path) for path in REQUESTS]
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    (line,) = (one for one in lines if one.startswith(f"| {server} | {what} |"))
    assert [cell.strip() for cell in line.strip("|").split("|")[2:5]] == cells


def test_the_page_has_no_other_shape() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = [line.strip("|").split("|") for line in lines if line.startswith("| ")]
    found = [one[:2] for one in cells if len(one) == 6][1:]
    assert [f"{server.strip()}: {what.strip()}" for server, what in found] == [*SHAPES]
