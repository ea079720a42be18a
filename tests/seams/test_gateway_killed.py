"""A gateway that may have lost model calls fails the attempt whose calls they were."""

import asyncio
import contextlib
import os
import re
import socket
import subprocess
import sys

import aiohttp
import pytest
from tests.interpreter import AGL
from tests.models import call, entry
from tests.run_agents import running
from tests.stores import served

import agl
from agl.errors import StoreError, StoreUnavailableError
from agl.execution.base import ThreadingEvent
from agl.types import RolloutConfig
from agl_http.server import ServerThread, bind
from agl_testing.echo_llm import EchoLLM

pytest.importorskip("agl_gateway")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("agl_gateway.client.RETRY_SECONDS", (0.05, 0.1))


async def post(llm):
    return (await call(llm, "hello"))[0]


class Gateways:
    """``agl gateway`` as a process, one after the other on one port."""

    def __init__(self, llm, store_url):
        with bind("127.0.0.1", 0, listen=False) as sock:
            self.port = sock.getsockname()[1]
        self._arguments = ["--model", f"echo={llm.url}", "--store", store_url, "--open"]
        self.process = None

    def start(self):
        if self.process is not None and self.process.poll() is None:
            pytest.fail("the one before still runs")
        self.process = subprocess.Popen(
            [sys.executable, *AGL, "gateway", "--port", str(self.port), *self._arguments],
            env={**os.environ, "AGL_ALLOWED_HOSTS": "gateway"},  # see ``names``
            stderr=subprocess.PIPE,
            text=True,
        )
        seen = []
        for line in self.process.stderr:
            seen.append(line)
            if re.search(r"agl gateway: http://\S+/v1 serves", line):
                return
        pytest.fail(f"it did not start: {seen}")

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    @property
    def resource(self):
        return agl.ProxyLLM(endpoint=f"http://127.0.0.1:{self.port}/v1", model="echo")


@pytest.fixture
async def gateways(store):
    async with served(store) as (server, _):
        with EchoLLM() as llm:
            gateways = Gateways(llm, server.endpoint)
            gateways.start()
            yield gateways
            gateways.kill()


async def run(agent, store, resource, config=None):
    """The rollout as it ended, whatever number of attempts it took."""
    resources = await store.add_resources({"llm": resource})
    rollout = await store.enqueue_rollout(
        "task", resources_id=resources.resources_id, config=config or RolloutConfig()
    )
    event = ThreadingEvent()
    async with running(agent, store, event=event) as task:
        (ended,) = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
        event.set()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    return ended


@pytest.mark.timeout(60)
async def test_a_gateway_that_took_the_place_of_a_killed_one_fails_only_what_began_before_it(
    gateways, store
):
    attempts = []

    @agl.rollout
    async def agent(task: str, llm: agl.LLM, rollout: agl.Rollout) -> float:
        attempts.append(rollout.attempt.attempt_id)
        assert await post(llm) == 200
        if len(attempts) == 1:
            gateways.kill()
            gateways.start()
            assert await post(llm) == 200
        return 1.0

    config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    ended = await run(agent, store, gateways.resource, config)
    first, second = await store.query_attempts(ended.rollout_id)
    assert (first.status, first.error.boundary) == ("failed", "model")
    assert re.search(
        r"it has served for \d+\.\d s, and the attempt began \d+\.\d s ago", first.error.message
    )
    assert (second.status, ended.status) == ("succeeded", "succeeded")


@contextlib.asynccontextmanager
async def echoing(store):
    """A gateway of this process before a model that echoes."""
    with EchoLLM() as llm:
        proxy = agl.LLMProxy(model_list=[entry("echo", llm.url)], store=store)
        await proxy.start()
        yield proxy
        await proxy.stop()


async def test_a_restart_in_good_order_loses_nothing_and_the_attempt_succeeds(store):
    async with echoing(store) as proxy:

        @agl.rollout
        async def agent(task: str, llm: agl.LLM) -> float:
            assert await post(llm) == 200
            await proxy.restart()
            assert await post(llm) == 200
            return 1.0

        ended = await run(agent, store, proxy.as_resource())
    calls = await store.query_spans(ended.rollout_id, name="openai.chat.completion")
    assert (ended.status, len(list(calls))) == ("succeeded", 2)


async def test_a_restart_while_the_store_is_away_loses_calls_and_the_attempt_fails(monkeypatch):
    monkeypatch.setattr("agl_gateway.recorder.DRAIN_SECONDS", 0.01)

    class Away(agl.InMemoryLightningStore):
        for_calls = True

        async def turn(self, spans=(), **options):
            if self.for_calls and spans and spans[0].name == "openai.chat.completion":
                raise StoreUnavailableError("connection refused")
            return await super().turn(spans, **options)

    store = Away()
    async with echoing(store) as proxy:

        @agl.rollout
        async def agent(task: str, llm: agl.LLM) -> float:
            assert await post(llm) == 200
            await proxy.restart()
            store.for_calls = False
            return 1.0

        ended = await run(agent, store, proxy.as_resource())
        again = await run(agl.rollout(lambda task, llm: 1.0), store, proxy.as_resource())
    await store.close()
    assert (ended.status, ended.attempt.error.boundary) == ("failed", "model")
    assert "what was there before it may have been killed" in ended.attempt.error.message
    assert again.status == "succeeded"


@pytest.fixture
def names(monkeypatch):
    """Host name -> how each lookup ends, the last way for good: an error, or None for this host."""
    names, look_up = {}, socket.getaddrinfo

    def resolve(host, *args, **options):
        if host in names:
            how = names[host].pop(0) if len(names[host]) > 1 else names[host][0]
            if how is not None:
                raise socket.gaierror(how, "as the test says")
            host = "127.0.0.1"
        return look_up(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return names


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("how", "raises"),
    [(None, False), (None, True), (socket.EAI_NONAME, False), (socket.EAI_AGAIN, False)],
)
async def test_an_attempt_whose_gateway_was_killed_fails(gateways, store, names, how, raises):
    names["gateway"] = [None]

    @agl.rollout
    async def agent(task: str, llm: agl.LLM) -> float:
        for _ in range(3):
            assert await post(llm) == 200
        gateways.kill()  # within the tenth of a second in which records gather
        names["gateway"] = [how]  # which may go with it
        if raises:
            await post(llm)
        return 1.0

    resource = agl.ProxyLLM(endpoint=f"http://gateway:{gateways.port}/v1", model="echo")
    ended = await run(agent, store, resource)
    names.clear()
    gateways.start()
    assert (ended.status, ended.attempt.error.boundary) == ("failed", "model")
    assert "cannot say that it has recorded all model calls" in ended.attempt.error.message
    assert ("the agent raised aiohttp" in ended.attempt.error.message) == raises
    assert agl.find_final_reward(await store.query_spans(ended.rollout_id)) is None


@pytest.mark.timeout(60)
async def test_a_lookup_that_fails_for_a_moment_is_repeated(gateways, store, names):
    names["gateway"], addresses = [None], []

    @agl.rollout
    async def agent(task: str, llm: agl.LLM) -> float:
        addresses.append(llm)
        assert await post(llm) == 200
        names["gateway"] = [socket.EAI_AGAIN, None]
        return 1.0

    resource = agl.ProxyLLM(endpoint=f"http://gateway:{gateways.port}/v1", model="echo")
    ended = await run(agent, store, resource)
    assert ended.status == "succeeded"
    assert await post(addresses[0]) == 410  # its end was told


@pytest.mark.parametrize(
    "meanwhile", ["", "answer lost", "restart", "answer lost, restart", "restart, restart"]
)
async def test_calls_that_the_store_refuses_fail_the_attempt(meanwhile):
    class Full(agl.InMemoryLightningStore):
        async def turn(self, spans=(), *, finish=None, **options):
            if spans and finish is None and spans[0].name == "openai.chat.completion":
                raise StoreError("no room for this span")
            return await super().turn(spans, finish=finish, **options)

    store = Full()
    async with echoing(store) as proxy:

        @agl.rollout
        async def agent(task: str, llm: agl.LLM) -> float:
            for _ in range(2):
                assert await post(llm) == 200
            for what in filter(None, meanwhile.split(", ")):
                if what == "restart":
                    await proxy.restart()
                else:
                    async with aiohttp.ClientSession() as session:
                        (await session.post(f"{llm.endpoint.removesuffix('/v1')}/end")).release()
            return 1.0

        ended = await run(agent, store, proxy.as_resource())
    await store.close()
    assert (ended.status, ended.attempt.error.boundary) == ("failed", "model")
    assert "2 of them could not be stored" in ended.attempt.error.message


@pytest.mark.parametrize("status", [200, 404, 405])
async def test_a_gateway_that_knows_no_end_of_attempts_is_trusted_as_in_0_3(store, status):
    async def old(scope, receive, send):
        if scope["type"] == "lifespan":
            for phase in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{phase}.complete"})
            return
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    server = ServerThread(old)
    server.start()

    @agl.rollout
    async def agent(task: str, llm: agl.LLM) -> float:
        return 1.0

    resource = agl.ProxyLLM(endpoint=f"{server.url}/v1", model="echo")
    ended = await run(agent, store, resource)
    server.stop()
    assert ended.status == "succeeded"
