"""What an agent writes into a call, and what a backend answers, leads a gateway nowhere else."""

import asyncio
import json
from collections.abc import AsyncGenerator, Generator
from typing import Any

import aiohttp
import pytest
from tests.models import entry

import agl
from agl_http.layers import JSON, send_whole
from agl_http.server import ServerThread
from agl_http.tokens import tokens_of
from agl_testing.echo_llm import EchoLLM

pytest.importorskip("agl_gateway")

USER = [{"role": "user", "content": "hello"}]


@pytest.fixture
def elsewhere() -> Generator[EchoLLM]:
    """A server that nobody should be led to."""
    with EchoLLM(lambda request: "you were led here") as server:
        yield server


async def proxy_of(api_base: str) -> Any:
    model = entry("m", api_base)
    model["litellm_params"]["api_key"] = "the provider's key"
    store = agl.InMemoryLightningStore()
    proxy = agl.LLMProxy(port=0, store=store, model_list=[model], num_retries=0, open=True)
    await proxy.start()
    return proxy


@pytest.fixture
async def proxy() -> AsyncGenerator[Any]:
    with EchoLLM() as backend:
        proxy = await proxy_of(backend.url)
        yield proxy
        await proxy.stop()


async def post(url: str, body: dict[str, Any], **headers: str) -> tuple[int, str, dict[str, str]]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json=body, headers=headers, allow_redirects=False) as response,
    ):
        return response.status, await response.text(), dict(response.headers)


async def test_a_call_names_no_server(proxy: Any, elsewhere: EchoLLM) -> None:
    url = f"{proxy.address.url()}/v1/chat/completions"
    for field in ("api_base", "base_url", "api_key", "custom_llm_provider", "extra_headers"):
        status, said, _ = await post(url, {"model": "m", "messages": USER, field: elsewhere.url})
        assert status == 200
        assert "hello" in said
    for model in (elsewhere.url, f"hosted_vllm/m@{elsewhere.url}", "openai/m", "../m"):
        status, said, _ = await post(url, {"model": model, "messages": USER})
        assert status == 404
    assert elsewhere.requests == []
    # Where the gateway is told to go there, it does.
    proxy.update_model_list([entry("m", elsewhere.url)])
    assert "led here" in (await post(url, {"model": "m", "messages": USER}))[1]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_backend_sends_nobody_elsewhere(elsewhere: EchoLLM, status: int) -> None:
    async def redirects(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            to = (b"location", f"{elsewhere.url}/chat/completions".encode())
            cookie = (b"set-cookie", b"session=secret")
            await send_whole(send, status, b"{}", JSON, to, cookie)

    backend = ServerThread(redirects)
    await asyncio.to_thread(backend.start)
    proxy = await proxy_of(f"{backend.url}/v1")
    asked = {"model": "m", "messages": USER}
    got, said, headers = await post(f"{proxy.address.url()}/v1/chat/completions", asked)
    assert got == status
    assert elsewhere.requests == []
    assert not {"Location", "location", "Set-Cookie", "set-cookie"} & headers.keys()
    assert "the provider's key" not in said
    async with aiohttp.ClientSession() as session:  # who follows it arrives there
        (await session.post(f"{backend.url}/v1/chat/completions", json=asked)).release()
    await proxy.stop()
    await asyncio.to_thread(backend.stop)
    if status in (307, 308):
        assert [json.dumps(one["messages"]) for one in elsewhere.requests] == [json.dumps(USER)]


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/../health", "/rollout/..%2f..%2f/attempt/x/v1/chat/completions"),
        *("/v1/chat/completions/../../models", "//v1/models", "/v1/chat%2Fcompletions/x"),
    ],
)
async def test_a_path_leads_to_no_other_address(proxy: Any, path: str) -> None:
    url = proxy.address.url().removeprefix("http://")
    reader, writer = await asyncio.open_connection(*url.split(":"))
    body = json.dumps({"model": "m", "messages": USER}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    status = int((await reader.readline()).split()[1])
    writer.close()
    assert status in (400, 404, 405)


class Two:
    """A gateway with a budget of two calls an attempt, and two attempts that may call it."""

    def __init__(self, proxy: Any, store: Any, own: agl.AttemptedRollout, other: Any) -> None:
        self.proxy, self.store, self.own, self.other = proxy, store, own, other

    def address(self, one: agl.AttemptedRollout) -> str:
        """Of an attempt, without a token."""
        ids = f"rollout/{one.rollout_id}/attempt/{one.attempt.attempt_id}"
        return f"{self.proxy.address.url()}/{ids}/v1/chat/completions"

    def token(self, one: agl.AttemptedRollout, role: Any = "model") -> str:
        ids = (one.rollout_id, one.attempt.attempt_id) if role in ("model", "attempt") else ()
        return tokens_of(self.store).issue(role, *ids)

    async def call(self, url: str, token: str = "", **headers: str) -> int:
        headers |= {"Authorization": f"Bearer {token}"} if token else {}
        return (await post(url, {"model": "m", "messages": USER}, **headers))[0]


@pytest.fixture(params=[False, True], ids=["tokens", "open"])
async def two(request: pytest.FixtureRequest) -> AsyncGenerator[tuple[Two, bool]]:
    with EchoLLM() as backend:
        store = agl.InMemoryLightningStore()
        options = {"attempt_budget": {"calls": 2}, "open": request.param}
        models = [entry("m", backend.url)]
        proxy = agl.LLMProxy(port=0, store=store, model_list=models, **options)
        await proxy.start()
        own, other = [await store.start_rollout(name) for name in ("mine", "theirs")]
        yield Two(proxy, store, own, other), request.param
        await proxy.stop()


async def test_nobody_spends_the_budget_of_a_neighbour(two: tuple[Two, bool]) -> None:
    bench, is_open = two
    token = bench.token(bench.own)
    url, bare = bench.address(bench.other), f"{bench.proxy.address.url()}/v1/chat/completions"
    ids = {"x-rollout-id": bench.other.rollout_id, "x-attempt-id": bench.other.attempt.attempt_id}
    tried = [
        await bench.call(url, token),
        await bench.call(url.replace("/v1/", f"/token/{token}/v1/")),
        await bench.call(bare, token, **ids),
        await bench.call(bench.address(bench.own), token, **ids),  # counts for oneself
        await bench.call(bench.address(bench.own)),
    ]
    assert tried == ([200, 200, 429, 200, 200] if is_open else [401, 401, 401, 200, 401])
    theirs = [await bench.call(url, bench.token(bench.other)) for _ in range(3)]
    assert theirs == ([429] * 3 if is_open else [200, 200, 429])


async def test_no_call_is_made_beside_the_record(two: tuple[Two, bool]) -> None:
    bench, is_open = two
    bare = f"{bench.proxy.address.url()}/v1/chat/completions"
    for token in ("", bench.token(bench.own)):
        assert await bench.call(bare, token) == (200 if is_open else 401)
    await bench.proxy.flush()
    assert len(await bench.store.query_spans(bench.own.rollout_id)) == 0
    assert await bench.call(bench.address(bench.own), bench.token(bench.own)) == 200
    await bench.proxy.flush()
    assert len(await bench.store.query_spans(bench.own.rollout_id)) == 1


async def test_only_the_token_for_models_calls_models(two: tuple[Two, bool]) -> None:
    bench, is_open = two
    if not is_open:
        assert await bench.call(bench.address(bench.own)) == 401
    for role in ("attempt", "runner", "reader"):
        status = await bench.call(bench.address(bench.own), bench.token(bench.own, role))
        assert status == (401 if not is_open else 429 if role == "reader" else 200)


async def test_nobody_ends_the_calls_of_a_neighbour(two: tuple[Two, bool]) -> None:
    bench, is_open = two
    end = bench.address(bench.other).removesuffix("/v1/chat/completions") + "/end"
    assert await bench.call(end, bench.token(bench.own)) == (200 if is_open else 401)
    status = await bench.call(bench.address(bench.other), bench.token(bench.other))
    assert status == (410 if is_open else 200)


async def test_a_call_that_is_repeated_after_the_end_reaches_no_model(two) -> None:
    bench, _ = two
    url, token = bench.address(bench.own), bench.token(bench.own)
    assert await bench.call(url, token) == 200  # the same request, while it may
    ids = bench.own.rollout_id, bench.own.attempt.attempt_id
    await bench.store.update_attempt(*ids, status="succeeded")
    await bench.call(f"{url.removesuffix('/v1/chat/completions')}/end", token)
    assert await bench.call(url, token) == 410


async def test_an_answer_does_not_tell_the_id_of_its_record(two: tuple[Two, bool]) -> None:
    bench, _ = two
    ask = {"model": "m", "messages": USER}
    key = {"Authorization": f"Bearer {bench.token(bench.own)}"}
    _, body, headers = await post(bench.address(bench.own), ask, **key)
    await bench.proxy.flush()
    (span,) = await bench.store.query_spans(bench.own.rollout_id)
    assert span.span_id not in body + str(headers)
    assert span.name in ("openai.chat.completion",)
