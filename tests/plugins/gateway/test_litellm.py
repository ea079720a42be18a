"""Models of other providers: LiteLLM's real library, in front of a mock of Anthropic's API."""

import asyncio
import importlib.util
import json
import re
import sys
import threading
from typing import Any

import aiohttp
import pytest
from tests.interpreter import python

from agl.errors import ConfigError, install_line
from agl.semconv import ModelCallAttributes as Key
from agl_gateway import LLMProxy
from agl_gateway.litellm import _import_litellm
from agl_gateway.providers import PROVIDERS
from agl_http.server import ServerThread

from .conftest import SCHEMA

# LiteLLM's types and clients warn on their own account.
pytestmark = pytest.mark.filterwarnings("default")
IS_HERE = importlib.util.find_spec("litellm") is not None


def needs_litellm(test):
    """Of a test that calls LiteLLM, whose first call imports it."""
    wanted = pytest.mark.skipif(not IS_HERE, reason="nox -s litellm installs it")
    return wanted(pytest.mark.timeout(240)(test))


TEXT = {"type": "text", "text": "hello big world"}
TOOL_USE = {"type": "tool_use", "id": "tu_1", "name": "look", "input": {"room": "kitchen"}}


class AnthropicMock:
    """Answers ``/v1/messages`` as Anthropic's API does."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.error: tuple[int, str] | None = None
        self.stalls = False
        """Whether a stream comes to a halt after its first words."""
        self.was_left = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for phase in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{phase}.complete"})
            return
        body, more = b"", True
        while more:
            event = await receive()
            body, more = body + event.get("body", b""), event.get("more_body", False)
        request = json.loads(body)
        self.requests.append(request)
        self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        status, kind, answer = self.answer(request)
        headers = [(b"content-type", kind)]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if self.stalls:
            begun = answer[: answer.index(b"big")]
            await send({"type": "http.response.body", "body": begun, "more_body": True})
            await receive()  # returns when the other side hangs up
            self.was_left.set()
        await send({"type": "http.response.body", "body": answer})

    def answer(self, request: dict[str, Any]) -> tuple[int, bytes, bytes]:
        if self.error is not None:
            error = {"type": self.error[1], "message": f"mock says {self.error[1]}"}
            return self.error[0], b"application/json", dumps({"type": "error", "error": error})
        content = TOOL_USE if request.get("tools") else TEXT
        stop_reason = "tool_use" if request.get("tools") else "end_turn"
        usage = {"input_tokens": 7, "output_tokens": 4}
        message = {
            "id": "msg_1", "type": "message", "role": "assistant", "model": request["model"],
            "content": [content], "stop_reason": stop_reason, "stop_sequence": None, "usage": usage,
        }  # fmt: skip
        if not request.get("stream"):
            return 200, b"application/json", dumps(message)
        if content is TEXT:
            start = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": text} for text in ("hello ", "big ", "world")]
        else:
            start = {**TOOL_USE, "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": json.dumps(TOOL_USE["input"])}]
        stopped = {"stop_reason": stop_reason, "stop_sequence": None}
        events = [
            {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}},
            {"type": "content_block_start", "index": 0, "content_block": start},
            *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": stopped, "usage": {"output_tokens": 4}},
            {"type": "message_stop"},
        ]
        lines = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]
        return 200, b"text/event-stream", "".join(lines).encode()


def dumps(value: object) -> bytes:
    return json.dumps(value).encode()


def claude(**parameters: object) -> list[Any]:
    params = {"model": "anthropic/claude-sonnet-4-5", **parameters}
    return [{"model_name": "echo", "litellm_params": params}]


@pytest.fixture
def anthropic_api():
    mock = AnthropicMock()
    server = ServerThread(mock, drain_seconds=1.0)
    server.start()
    yield mock, server.url
    server.stop()


@pytest.fixture
async def provider(bench, anthropic_api):
    """The bench, with Anthropic's API behind the gateway."""
    mock, url = anthropic_api
    bench.proxy.update_model_list(claude(api_base=url, api_key="secret"))
    bench.mock = mock
    return bench


@needs_litellm
@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_with_a_provider_is_answered_and_recorded(provider, stream):
    status, body = await provider.post(provider.ask(stream=stream, max_tokens=50))
    assert status == 200, body
    if stream:
        assert body.endswith(b"data: [DONE]\n\n")
        deltas = [json.loads(line[6:]) for line in body.split(b"\n") if b'"delta"' in line]
        text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in deltas)
    else:
        text = json.loads(body)["choices"][0]["message"]["content"]
    assert text == "hello big world"
    assert provider.mock.requests[0]["model"] == "claude-sonnet-4-5"
    assert provider.mock.headers[0]["x-api-key"] == "secret"
    attributes = await provider.attributes()
    assert json.loads(attributes[Key.OUTPUT_MESSAGES])[0]["content"] == "hello big world"
    assert attributes[Key.FINISH_REASONS] == ["stop"]
    assert attributes[Key.PROVIDER] == "anthropic"
    assert Key.ERROR not in attributes


@needs_litellm
@pytest.mark.parametrize("stream", [False, True])
async def test_tools_of_a_provider_reach_an_agent_of_another_dialect(provider, stream):
    tool = {"type": "function", "name": "look", "parameters": SCHEMA, "strict": False}
    body = {"model": "echo", "input": "look", "tools": [tool], "stream": stream}
    status, answer = await provider.post(body, path="responses")
    assert status == 200, answer
    if stream:
        answer = answer.strip().split(b"\n\n")[-1].split(b"data: ")[1]
        response = json.loads(answer)["response"]
    else:
        response = json.loads(answer)
    (call,) = response["output"]
    assert (call["call_id"], call["name"]) == ("tu_1", "look")
    assert json.loads(call["arguments"]) == {"room": "kitchen"}
    assert response["usage"]["input_tokens"] == 7
    (message,) = json.loads((await provider.attributes())[Key.OUTPUT_MESSAGES])
    assert message["tool_calls"][0]["function"]["name"] == "look"


@needs_litellm
@pytest.mark.parametrize(("status", "kind"), [(400, "invalid_request_error"), (529, "overloaded")])
async def test_an_error_of_a_provider_is_passed_on_and_recorded(provider, status, kind):
    provider.mock.error = (status, kind)
    got, error = await provider.refused(provider.ask(max_tokens=50))
    assert got >= 400
    assert kind in error["message"]
    assert len(provider.mock.requests) == 1
    assert kind in (await provider.attributes())[Key.ERROR]


@needs_litellm
async def test_an_agent_cannot_redirect_a_call_with_litellms_own_arguments(provider):
    status, error = await provider.refused(provider.ask(api_base="http://127.0.0.1:9"))
    assert status == 400
    assert "api_base" in error["message"]
    assert provider.mock.requests == []


@needs_litellm
async def test_an_agent_that_hangs_up_ends_the_call_of_the_provider(provider):
    provider.mock.stalls = True
    url, asked = f"{provider.url}/chat/completions", provider.ask(stream=True)
    async with aiohttp.ClientSession() as session, session.post(url, json=asked) as response:
        assert b"hello" in await response.content.readany()
        response.close()
        assert await asyncio.to_thread(provider.mock.was_left.wait, 10)
    assert "client closed the connection" in (await provider.attributes())[Key.ERROR]


@needs_litellm
async def test_a_provider_has_no_completions(provider):
    status, error = await provider.refused({"model": "echo", "prompt": "a"}, path="completions")
    assert status == 400
    assert "use /v1/chat/completions" in error["message"]


def test_without_litellm_a_model_of_a_provider_is_refused_with_the_pip_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "litellm", None)
    with pytest.raises(ConfigError, match=re.escape(install_line("agl-gateway[litellm]"))):
        LLMProxy(open=True, model_list=claude(api_key="secret"))


def test_a_parameter_that_is_unknown_is_refused():
    with pytest.raises(ConfigError, match="unknown key 'api_bass'"):
        LLMProxy(open=True, model_list=claude(api_bass="http://127.0.0.1:1"))


def test_litellm_is_not_imported_for_other_models():
    code = (
        "import sys; from agl_gateway import LLMProxy; import agl_gateway.app; "
        "LLMProxy(model_list=[{'model_name': 'm', 'litellm_params': {'model': 'hosted_vllm/m', "
        "'api_base': 'http://127.0.0.1:1/v1'}}]); sys.exit('litellm' in sys.modules)"
    )
    assert python("-c", code).returncode == 0


@needs_litellm
def test_our_list_of_providers_is_litellms():
    litellm = _import_litellm()
    known = {str(getattr(provider, "value", provider)) for provider in litellm.provider_list}
    assert set(PROVIDERS) <= known
