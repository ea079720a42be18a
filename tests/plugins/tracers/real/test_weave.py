"""What is Weave's own: ops, objects, streams put together, and clients that are not ours."""

import os
from typing import Any

import pytest
from scene import QUESTION, reply
from tests.interpreter import python

import agl
from agl.store.memory import InMemoryLightningStore
from agl_testing.echo_llm import EchoLLM

# Imports take long on a busy machine.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def only_with_weave(tracer_name):
    if tracer_name != "weave":
        pytest.skip("another tracer's session")


async def test_ops_and_operations_nest_as_they_were_called(tracer, memory_store):
    import weave

    @weave.op
    def inner(number: int) -> int:
        agl.emit_message("inside")
        return number + 1

    @weave.op
    async def outer(number: int) -> int:
        with agl.operation(name="between"):
            found = inner(number)
        agl.emit_reward(1.0)
        return found

    rollout = await memory_store.start_rollout(input="task")
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    async with tracer.trace_context(store=memory_store, **ids):
        assert await outer(1) == 2
        agl.emit_message("outside")
    spans = list(await memory_store.query_spans(rollout.rollout_id))
    message, called, between, reward, top, last = spans
    assert [top.parent_id, last.parent_id] == [None, None]
    assert [between.parent_id, reward.parent_id] == [top.span_id] * 2
    assert called.parent_id == between.span_id
    assert message.parent_id == called.span_id
    assert len({span.trace_id for span in spans}) == 1
    assert (called.name, top.name) == ("inner", "outer")
    assert called.attributes["agentlightning.operation.input.number"] == 1
    assert called.attributes["agentlightning.operation.output"] == 2


async def test_objects_stand_in_the_spans_that_were_given_them(tracer, memory_store):
    import weave

    class Style(weave.Object):
        tone: str
        words: int | None = None

    @weave.op
    def write(style: Style) -> dict[str, Any]:
        return {"text": style.tone, "nothing": None}

    rollout = await memory_store.start_rollout(input="task")
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    style = Style(tone="dry")
    async with tracer.trace_context(store=memory_store, **ids):
        write(style)
        write(style)
    for span in await memory_store.query_spans(rollout.rollout_id):
        assert span.attributes["agentlightning.operation.input.style.tone"] == "dry"
        assert span.attributes["agentlightning.operation.output.text"] == "dry"
        assert "agentlightning.operation.output.nothing" not in span.attributes


def test_a_stream_comes_out_as_the_answer_would_have_come():
    from openai.types.chat import ChatCompletionChunk

    from agl_tracers.weave_streams import add_chunk

    def chunk(choices: list[dict[str, Any]], **fields: Any) -> ChatCompletionChunk:
        fields = {"id": "c", "created": 1, "model": "m", **fields}
        return ChatCompletionChunk.model_validate(
            {"object": "chat.completion.chunk", "choices": choices, **fields}
        )

    def call(index: int, **function: str) -> dict[str, Any]:
        return {"index": index, "function": function}

    first = {**call(0, name="look", arguments='{"a"'), "id": "call_1", "type": "function"}
    second = {**call(1, name="go", arguments=""), "id": "call_2", "type": "function"}
    logprob = {"token": "x", "logprob": -0.5, "top_logprobs": [], "bytes": None}
    pieces = [
        chunk([{"index": 0, "delta": {"role": "assistant"}}], prompt_token_ids=[1, 2]),
        chunk([{"index": 1, "delta": {"role": "assistant"}}], prompt_token_ids=[1, 2]),
        chunk([{"index": 1, "delta": {"content": "He"}, "token_ids": [7]}]),
        chunk([{"index": 0, "delta": {"tool_calls": [first]}, "token_ids": [3]}]),
        chunk([{"index": 0, "delta": {"tool_calls": [call(0, arguments=":1}"), second]}}]),
        chunk([{"index": 1, "delta": {"content": "llo"}, "logprobs": {"content": [logprob]}}]),
        chunk([{"index": 1, "delta": {}, "logprobs": {"content": [logprob]}, "token_ids": [8]}]),
        chunk([{"index": 0, "delta": {}, "finish_reason": "tool_calls", "token_ids": [4]}]),
    ]
    answer = None
    for piece in pieces:
        answer = add_chunk(answer, piece)
    usage = {"prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6}
    with pytest.raises(StopIteration) as last:
        add_chunk(answer, chunk([], usage=usage), skip_last=True)
    answer = last.value.value
    assert answer["prompt_token_ids"] == [1, 2]
    assert answer["usage"] == usage
    assert answer["object"] == "chat.completion"
    zero, one = answer["choices"]
    expected = [{"name": "look", "arguments": '{"a":1}'}, {"name": "go", "arguments": ""}]
    assert [each["function"] for each in zero["message"]["tool_calls"]] == expected
    assert (zero["token_ids"], zero["finish_reason"]) == ([3, 4], "tool_calls")
    assert (one["message"]["content"], one["token_ids"]) == ("Hello", [7, 8])
    assert [each["logprob"] for each in one["logprobs"]["content"]] == [-0.5, -0.5]


@pytest.mark.parametrize("way", ["create", "stream", "final"])
async def test_streams_of_anthropic_keep_calls_of_tools(way, tracer, memory_store):
    anthropic = pytest.importorskip("anthropic")
    import agl_gateway
    from agl_records.calls.reader import model_calls

    tool = {"name": "get_weather", "input_schema": {"type": "object", "properties": {}}}
    request: dict[str, Any] = {
        "model": "echo",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": QUESTION}],
        "tools": [tool],
    }
    rollout = await memory_store.start_rollout(input="task")
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    with EchoLLM(reply) as llm:
        entry: Any = {
            "model_name": "echo",
            "litellm_params": {"model": "echo", "api_base": llm.url},
        }
        proxy = agl_gateway.LLMProxy(model_list=[entry], store=InMemoryLightningStore(), open=True)
        await proxy.start()
        url = proxy.as_resource().endpoint.removesuffix("/v1")
        try:
            async with (
                tracer.trace_context(store=memory_store, **ids),
                anthropic.AsyncAnthropic(base_url=url, api_key="none") as client,
            ):
                if way == "create":
                    async for _ in await client.messages.create(stream=True, **request):
                        pass
                else:
                    async with client.messages.stream(**request) as stream:
                        if way == "final":
                            await stream.get_final_message()
                        else:
                            async for _ in stream:
                                pass
        finally:
            await proxy.stop()
    (call,) = model_calls(list(await memory_store.query_spans(rollout.rollout_id)))
    assert call.messages == request["messages"]
    assert [each["function"]["name"] for each in call.tools] == ["get_weather"]
    function = (call.response or {})["tool_calls"][0]["function"]
    assert function == {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    assert call.finish_reason == "tool_calls"


ALONE = """
import os
import weave
from agl.errors import TracerError
from agl_tracers import WeaveTracer
from weave.trace.context.weave_client_context import get_weave_client, set_weave_client_global
from weave.trace.weave_client import WeaveClient

def refused():
    try:
        WeaveTracer(libraries=[]).init_worker(0)
    except TracerError as error:
        return str(error)

theirs = WeaveClient("their", "project", object(), ensure_project_exists=False)
set_weave_client_global(theirs)
assert "weave.init was called" in refused()
assert get_weave_client() is theirs
set_weave_client_global(None)
for name in ("WEAVE_DISABLED", "WEAVE_ENABLE_WAL"):
    os.environ[name] = "true"
    assert f"{name} is set" in refused()
    del os.environ[name]
one, two = WeaveTracer(libraries=[]), WeaveTracer(libraries=[])
one.init_worker(0)
ours = get_weave_client()
two.init_worker(1)
one.teardown_worker(0)
assert get_weave_client() is ours
two.teardown_worker(1)
assert get_weave_client() is None
assert weave.op(lambda: 1)() == 1
with one.lifespan():
    assert get_weave_client() is ours
print("well")
"""


def test_clients_that_are_not_ours_are_left_alone(tmp_path):
    own = {"WANDB_ERROR_REPORTING": "false", "HOME": str(tmp_path)}
    done = python("-c", ALONE, env={**os.environ, **own})
    assert done.stdout.endswith("well\n"), done.stderr


async def test_a_trace_of_0_3_has_one_span_that_holds_all_others(memory_store):
    import weave

    from agentlightning import WeaveTracer

    @weave.op
    def called() -> None: ...

    tracer = WeaveTracer()
    rollout = await memory_store.start_rollout(input="task")
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    with tracer.lifespan(memory_store):
        async with tracer.trace_context("mine", store=memory_store, **ids):
            called()
    inner, root = await memory_store.query_spans(rollout.rollout_id)
    assert [inner.name, root.name, root.parent_id] == ["called", "mine", None]
    assert inner.parent_id == root.span_id
