"""What an agent writes into a call, and what a backend answers, leads a gateway nowhere else."""

import asyncio
import json
from collections.abc import AsyncGenerator, Generator
from typing import Any

import aiohttp
import pytest

import agl
from agl.http.layers import JSON, send_whole
from agl.http.serving import ServerThread
from agl_testing.echo_llm import EchoLLM

pytest.importorskip("agl_gateway")

USER = [{"role": "user", "content": "hello"}]


@pytest.fixture
def elsewhere() -> Generator[EchoLLM]:
    """A server that nobody should be led to."""
    with EchoLLM(lambda request: "you were led here") as server:
        yield server


async def proxy_of(api_base: str) -> Any:
    entry = {"model": "hosted_vllm/m", "api_base": api_base, "api_key": "the provider's key"}
    proxy = agl.LLMProxy(
        port=0,
        store=agl.InMemoryLightningStore(),
        model_list=[{"model_name": "m", "litellm_params": entry}],
        num_retries=0,
        open=True,
    )
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
    proxy.update_model_list(
        [
            {
                "model_name": "m",
                "litellm_params": {"model": "hosted_vllm/m", "api_base": elsewhere.url},
            }
        ]
    )
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
        await session.post(f"{backend.url}/v1/chat/completions", json=asked)
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
