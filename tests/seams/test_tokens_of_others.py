"""Tokens that another process left, or lacks: runners, gateways and servers say so or wait."""

import asyncio
import shlex

import pytest
from tests.interpreter import AGL, python
from tests.run_agents import running
from tests.stores import served

import agl
from agl.errors import ConfigError, NotAllowedError
from agl_http.tokens import issue_token, tokens_of
from agl_server.runner_tokens import ClaimTokens, TokenSlot


async def test_a_token_that_a_killed_server_left_is_replaced_by_the_next_ones(tmp_path) -> None:
    slot = TokenSlot(tmp_path / "folder" / "token")
    slot.put(tokens_of(agl.InMemoryLightningStore()).admin)  # of the one that was killed
    async with served() as (server, _):
        client = agl.LightningStoreClient(server.address, token=slot)
        asked = asyncio.ensure_future(client.statistics())
        done, _ = await asyncio.wait([asked], timeout=0.5)
        assert not done
        slot.put(tokens_of(server).admin)
        assert (await asked).get("total_rollouts") == 0
        await client.close()


@pytest.mark.plugins
@pytest.mark.parametrize("role", ["runner", None])
async def test_a_gateway_without_the_right_to_read_tokens_does_not_start(role: str | None) -> None:
    pytest.importorskip("agl_gateway")
    async with served() as (server, _):
        address = server.address
        if role is not None:
            address = address.replace("//", f"//agl:{await issue_token(server, 'runner')}@")
        command = (*AGL, "gateway", "--port", "0", "--store", address)
        model = ("--model", "m=http://127.0.0.1:9/v1")
        done = await asyncio.to_thread(python, *command, *model)
    assert done.returncode == 2, done.stderr
    assert "AGL_SERVER_TOKEN" in done.stderr


def test_a_server_is_not_open_and_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = agl.InMemoryLightningStore()
    with pytest.raises(ConfigError, match="excludes token= and AGL_SERVER_TOKEN"):
        agl.LightningStoreServer(store, port=0, open=True, token="0123456789abcdef")
    monkeypatch.setenv("AGL_SERVER_TOKEN", "0123456789abcdef")
    with pytest.raises(ConfigError, match="excludes token= and AGL_SERVER_TOKEN"):
        agl.LightningStoreServer(store, port=0, open=True)


def serve() -> None:
    agl.LightningStoreServer(agl.InMemoryLightningStore(), port=0)


def prepare_run() -> None:
    agl.ClientServerExecutionStrategy(server_port=0).prepare()


@pytest.mark.parametrize("start", [serve, prepare_run])
def test_a_token_that_agents_could_guess_starts_nothing(start, monkeypatch) -> None:
    monkeypatch.setenv("AGL_SERVER_TOKEN", "0123456789abcde")
    with pytest.raises(ConfigError, match="has 15 characters, and needs 16 or more") as refused:
        start()
    command = shlex.split(str(refused.value).partition("Make one with: ")[2])
    made = python(*command[1:])
    agl.LightningStoreServer(agl.InMemoryLightningStore(), port=0, token=made.stdout.strip())


async def test_heartbeats_and_cancellations_reach_a_runner_with_a_runners_token(store) -> None:
    async def agent(task: str) -> None:
        await asyncio.Event().wait()

    rollout = await store.enqueue_rollout("task")
    options = {"max_rollouts": 1, "heartbeat_interval": 0.05}
    async with served(store) as (server, _):
        token = await issue_token(server, "runner")
        client = agl.LightningStoreClient(server.address, token=token)
        async with running(agent, client, **options) as task, asyncio.timeout(60):
            while (  # noqa: ASYNC110 (a store tells nobody of heartbeats)
                attempt := await store.get_latest_attempt(rollout.rollout_id)
            ) is None or (attempt.last_heartbeat_time is None):
                await asyncio.sleep(0.02)
            await store.update_rollout(rollout.rollout_id, status="cancelled")
            await task
        attempt = await store.get_latest_attempt(rollout.rollout_id)
        assert attempt.error.boundary == "cancelled"
        for asked in ({}, {"rollout_id_in": [rollout.rollout_id], "filter_logic": "or"}):
            with pytest.raises(NotAllowedError, match="may query_rollouts only by rollout_id_in"):
                await client.query_rollouts(**asked)
        await client.close()


def test_tokens_of_what_is_in_use_are_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agl_server.runner_tokens.MAX_KNOWN", 3)
    tokens = ClaimTokens("runner.0.0..")
    for number in range(10):
        tokens.note(f"ro-{number}", "at", f"token {number}")
        assert tokens.of(["ro-0"]) == ["token 0"]
    assert tokens.of(["ro-1"]) == []


@pytest.mark.parametrize("token", ["p\u00e4ssw\u00f6rd of a user", "with a newline in it\n"])
def test_a_token_that_no_header_takes_is_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="printable ASCII"):
        agl.LightningStoreServer(agl.InMemoryLightningStore(), port=0, token=token)
