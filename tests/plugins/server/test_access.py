"""Who may call a server: tokens, other hosts, pages of other origins."""

import asyncio
import time

import aiohttp
import pytest
from tests.stores import served

from agl.errors import ConfigError
from agl_http.server import bind
from agl_http.tokens import Tokens
from agl_server.server import LightningStoreServer

from .store_calls import ask, get, post


async def test_with_a_token_only_health_is_open(store):
    async with (
        served(store, token="s3cret-long-enough") as (server, _),
        aiohttp.ClientSession(server.address) as http,
    ):
        await get(http, "/v1/agl/health")
        await get(http, "/health")
        for key in (None, "Bearer wrong", "s3cret-long-enough"):
            header = {"Authorization": key} if key else {}
            for path in ("/v1/agl/rollouts", "/openapi.json", "/metrics", "/nowhere"):
                await ask(http, "GET", path, headers=header, expect=401)
            for name in ("spans", "spans/batch", "queues/rollouts/enqueue", "turn"):
                answer = await post(http, f"/v1/agl/{name}", {}, 401, **header)
                assert answer["error_type"] == "Unauthorized"
            await post(http, "/v1/traces", expect=401, **header)
        for key in ("Bearer s3cret-long-enough", "bearer s3cret-long-enough"):
            header = {"Authorization": key}
            await ask(http, "GET", "/v1/agl/rollouts", headers=header, expect=200)


async def test_the_description_is_made_once_for_all_who_ask_at_once(store, monkeypatch):
    working, most = [0], [0]

    def described(*_: object) -> dict[str, int]:
        working[0] += 1
        most[0] = max(most[0], working[0])
        time.sleep(0.05)
        working[0] -= 1
        return {"paths": 0}

    monkeypatch.setattr("agl_server.description.openapi_of", described)
    async with served(store) as (server, _), aiohttp.ClientSession(server.endpoint) as http:
        pages = await asyncio.gather(*(get(http, "/openapi.json") for _ in range(3)))
    assert pages == [{"paths": 0}] * 3
    assert most == [1]


async def test_other_hosts_need_a_token(store, monkeypatch):
    monkeypatch.delenv("AGL_SERVER_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="AGL_SERVER_TOKEN"):
        LightningStoreServer(store, host="0.0.0.0")
    with bind("0.0.0.0", 0) as sock, pytest.raises(ConfigError, match="AGL_SERVER_TOKEN"):
        LightningStoreServer(store, sock=sock)
    monkeypatch.setenv("AGL_SERVER_TOKEN", "s3cret-long-enough")
    headers = LightningStoreServer(store, host="0.0.0.0").headers
    assert headers == {"Authorization": "Bearer s3cret-long-enough"}


async def test_only_given_origins_may_call_from_a_page(store):
    board = "https://board.example"
    async with (
        served(store, cors_allow_origins=board, token="t" * 16) as (server, _),
        aiohttp.ClientSession(server.endpoint) as http,
    ):
        preflight = {
            "Origin": board,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization",
        }
        async with http.options("/v1/agl/rollouts", headers=preflight) as response:
            assert response.status == 200
            assert response.headers["Access-Control-Allow-Origin"] == board
        preflight["Origin"] = "https://elsewhere.example"
        async with http.options("/v1/agl/rollouts", headers=preflight) as response:
            assert "Access-Control-Allow-Origin" not in response.headers


def test_token_is_made_before_its_server_runs(agl, monkeypatch):
    monkeypatch.delenv("AGL_SERVER_TOKEN", raising=False)
    refused = agl("token", "runner")
    assert (refused.code, "(AGL_SERVER_TOKEN, or token=) has 0" in refused.err) == (2, True)
    monkeypatch.setenv("AGL_SERVER_TOKEN", "s3cret-long-enough")
    token = agl("token", "runner").out.strip()
    assert Tokens("s3cret-long-enough").read(token).role == "runner"
