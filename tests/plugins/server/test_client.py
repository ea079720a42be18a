"""The client of a store server, on connections that break."""

import asyncio
import contextlib
import pickle
import re
import threading
import time
from collections.abc import Callable

import pytest
from tests.run_agents import running
from tests.stores import served

from agl.errors import ConfigError, InvalidRecordError, StoreUnavailableError, UnknownRecordError
from agl.execution.base import ThreadingEvent
from agl.store.base import AttemptEnd
from agl.store.memory import InMemoryLightningStore
from agl.types import LLM, PromptTemplate, Span
from agl_http.server import bind
from agl_server.client import LightningStoreClient
from agl_server.server import LightningStoreServer
from agl_testing.store_steps import span_of

from .store_calls import store_process
from .test_server import forked, needs_fork


@pytest.fixture
def store():
    return InMemoryLightningStore()


@pytest.fixture
async def link(server):
    async with Link(server.endpoint) as link:
        yield link


@pytest.fixture
async def linked(link):
    """A client of the server behind the link."""
    client = LightningStoreClient(link.url, retry_delays=(0.01, 0.01, 0.01))
    yield client
    await client.close()


class Link:
    """A TCP relay in front of a server, which can lose or hold back answers.

    ``lose`` decides by the first bytes of a request whether its answer is lost: the server gets
    the request and carries it out, and the client sees its connection end.
    """

    def __init__(self, endpoint: str) -> None:
        self.port = int(endpoint.rpartition(":")[2])
        self.requests: list[str] = []
        self.lose: Callable[[str], bool] = lambda request: False
        self.held: asyncio.Event | None = None
        self.answered = asyncio.Event()
        self.serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Link":
        self.relay = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.relay.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        self.relay.close()
        for task in self.serving:
            task.cancel()
        await asyncio.gather(*self.serving, return_exceptions=True)

    async def serve(self, reader, writer) -> None:
        self.serving.add(asyncio.current_task())
        with contextlib.closing(writer):
            back, forth = await asyncio.open_connection("127.0.0.1", self.port)
            with contextlib.closing(forth):
                await self.relay_between(reader, writer, back, forth)

    async def relay_between(self, reader, writer, back, forth) -> None:
        lost = False

        async def requests() -> None:
            nonlocal lost
            while data := await reader.read(65536):
                first = data.partition(b"\r\n")[0].decode()
                if first.endswith("HTTP/1.1"):
                    self.requests.append(first)
                    lost = self.lose(first)
                forth.write(data)
            forth.close()

        async def answers() -> None:
            while data := await back.read(65536):
                self.answered.set()
                if self.held is not None:
                    await self.held.wait()
                if lost:
                    break
                writer.write(data)
            writer.close()

        await asyncio.gather(requests(), answers(), return_exceptions=True)


def once(word: str) -> Callable[[str], bool]:
    """Whether a request is the first with ``word`` in its first line."""
    seen: list[str] = []

    def lose(request: str) -> bool:
        if word not in request:
            return False
        seen.append(request)
        return len(seen) == 1

    return lose


async def test_records_of_any_id_are_the_same_on_both_sides(client, server):
    llm, prompt = LLM(endpoint="http://x/v1", model="m"), PromptTemplate(template="{q}")
    update = await client.update_resources("beam/0 ü", {"llm": llm, "prompt": prompt})
    assert update == await server.get_resources_by_id("beam/0 ü")
    assert update == await client.get_resources_by_id("beam/0 ü")
    assert await client.get_resources_by_id("latest") is None
    worker = await client.update_worker("host/1", {"cpu": 0.5})
    assert worker == await client.get_worker_by_id("host/1")
    assert await client.statistics() == pytest.approx(await server.statistics(), abs=5)


async def test_errors_come_back_as_themselves(client):
    rollout = await client.enqueue_rollout(1)
    for unknown in ("ro-none", "", "..", "a/b"):
        with pytest.raises(UnknownRecordError):
            await client.start_attempt(unknown)
    fields = Span.from_attributes(rollout_id=rollout.rollout_id, attributes={}).model_dump()
    with pytest.raises(InvalidRecordError, match=r"cannot be stored: .*what JSON can hold"):
        await client.add_many_spans([Span(**fields, unknown=float("nan"))])
    assert (await client.statistics())["total_rollouts"] == 1


async def test_a_token_comes_from_the_argument_or_the_environment(monkeypatch):
    monkeypatch.delenv("AGL_SERVER_TOKEN", raising=False)
    async with served(token="s3cret-long-enough") as (server, _):
        without = LightningStoreClient(server.address)
        clients = [LightningStoreClient(server.address, token="s3cret-long-enough")]
        clients.append(LightningStoreClient(server.endpoint))
        monkeypatch.setenv("AGL_SERVER_TOKEN", "s3cret-long-enough")
        clients.append(LightningStoreClient(server.address))
        with pytest.raises(ConfigError, match="AGL_SERVER_TOKEN"):
            await without.statistics()
        assert all([await each.statistics() for each in clients])
        for each in (without, *clients):
            await each.close()


@pytest.mark.parametrize(
    "address",
    [
        *("localhost:4747", "ftp://x", "http://", ""),
        *("http+unix:///tmp/agl.sock", "http+unix://agl.sock", "unix:/a"),
    ],
)
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ConfigError, match="http://127"):
        LightningStoreClient(address)


async def test_a_wait_for_work_is_one_request(server, link, linked):
    waiting = asyncio.create_task(linked.dequeue_rollout("w", wait_seconds=60))
    await asyncio.sleep(0.5)
    begin = time.monotonic()
    rollout = await server.enqueue_rollout(1)
    assert (await waiting).rollout_id == rollout.rollout_id
    assert time.monotonic() - begin < 30
    assert len(link.requests) == 1


async def test_waits_longer_than_one_request_go_on(client, server, monkeypatch):
    monkeypatch.setattr("agl_server.client.LONG_POLL_SECONDS", 0.3)
    rollout = await server.start_rollout(1)
    ended = asyncio.create_task(client.wait_for_rollouts(rollout_ids=[rollout.rollout_id, "none"]))
    claimed = asyncio.create_task(client.dequeue_rollout(wait_seconds=10))
    await asyncio.sleep(1)
    await server.update_attempt(rollout.rollout_id, "latest", status="succeeded")
    await server.enqueue_rollout(2)
    assert [each.status for each in await ended] == ["succeeded"]
    assert (await claimed).input == 2


async def test_a_claim_whose_answer_nobody_took_is_given_back(server, link, linked):
    await linked.statistics()
    waiting = asyncio.create_task(linked.dequeue_rollout("w", wait_seconds=20))
    await asyncio.sleep(0.2)
    link.held = asyncio.Event()
    link.answered.clear()
    rollout = await server.enqueue_rollout(1)
    await link.answered.wait()
    assert (await server.get_rollout_by_id(rollout.rollout_id)).status == "preparing"
    # The answer is on its way, and is not taken any more.
    waiting.cancel()
    link.held.set()
    link.held = None
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (await server.get_rollout_by_id(rollout.rollout_id)).status == "requeuing"


@pytest.mark.parametrize("seconds", [0.0, 0.002, 0.02])
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_runner_that_is_stopped_while_its_claim_waits_ends_and_keeps_no_work(
    client, is_cancelled, seconds
):
    event = ThreadingEvent()
    async with running(lambda task: time.sleep(3), client, event=event) as runner:
        await asyncio.sleep(0.3)
        await client.enqueue_rollout(0)
        await asyncio.sleep(seconds)
        runner.cancel() if is_cancelled else event.set()
        await client.enqueue_rollout(1)
        async with asyncio.timeout(10):
            await asyncio.wait([runner])
    given_back = await client.query_rollouts(status_in=["queuing", "requeuing"])
    ran = await client.query_rollouts(status_in=["succeeded", "cancelled"])
    assert len(given_back) + len(ran) == 2


async def test_what_lost_its_answer_is_done_once(server, link, linked):
    link.lose = once("enqueue")
    rollout = await linked.enqueue_rollout(1)
    assert (await server.statistics())["total_rollouts"] == 1

    link.lose = once("turn")
    claimed = await linked.dequeue_rollout("w")
    assert claimed.rollout_id == rollout.rollout_id
    assert (await server.statistics())["total_attempts"] == 1

    link.lose = once("turn")
    spans = [span_of(claimed) for _ in range(3)]
    added = await linked.add_many_spans(spans)
    assert [span.sequence_id for span in added] == [1, 2, 3]
    assert (await server.statistics())["total_spans"] == 3

    link.lose = once("/attempts/")
    await linked.update_attempt(rollout.rollout_id, "latest", status="succeeded")

    link.lose = once("POST /v1/agl/resources")
    assert (await linked.add_resources({})).version == 1
    assert (await server.statistics())["total_resources"] == 1

    link.lose = once("POST /v1/agl/rollouts")
    await linked.start_rollout(2)
    assert (await server.statistics())["total_rollouts"] == 2


async def test_a_store_that_stays_away_is_named(client, caplog):
    sock = bind("127.0.0.1", 0)
    address = f"http://127.0.0.1:{sock.getsockname()[1]}"
    sock.close()
    away = LightningStoreClient(address, retry_delays=(0.1, 0.2))
    begin = time.monotonic()
    with pytest.raises(StoreUnavailableError, match=f"{address}.*agl store"):
        await away.enqueue_rollout(1)
    assert 0.2 < time.monotonic() - begin < 30
    with pytest.raises(StoreUnavailableError):
        await away.statistics()
    said = [one for one in caplog.records if one.levelname == "WARNING"]
    assert len(said) == 1, "once in an outage"
    assert re.search(rf"{address}: nothing answers .*trying until \d\d:\d\d:\d\d$", said[0].message)
    await away.close()


async def test_a_store_that_was_waited_for_in_vain_is_not_waited_for_again(server):
    with bind("127.0.0.1", 0) as sock:
        gone = f"http://127.0.0.1:{sock.getsockname()[1]}"
    away = LightningStoreClient(gone, retry_delays=(0.01, 0.01, 0.01, 2.0))

    async def seconds_until_refused() -> float:
        begin = time.monotonic()
        with pytest.raises(StoreUnavailableError, match=gone):
            await away.statistics()
        return time.monotonic() - begin

    assert await seconds_until_refused() > 2.0
    assert await seconds_until_refused() < 1.5
    away._transport.addresses = [server.endpoint]
    await away.statistics()
    away._transport.addresses = [gone]
    assert await seconds_until_refused() > 2.0, "another outage"
    await away.close()


async def test_half_a_minute_without_a_store_is_survived_by_default(client):
    assert sum(client._transport.retry_delays) >= 30


async def test_a_store_that_says_nothing_is_given_up():
    with bind("127.0.0.1", 0) as sock:
        address = f"http://127.0.0.1:{sock.getsockname()[1]}"
        mute = LightningStoreClient(address, retry_delays=(0.2,), request_timeout=0.2)
        with pytest.raises(StoreUnavailableError, match="nothing came within"):
            await mute.statistics()
        await mute.close()


async def test_call_that_ends_with_its_client_says_so():
    with bind("127.0.0.1", 0) as sock:
        sock.setblocking(False)
        client = LightningStoreClient(f"http://127.0.0.1:{sock.getsockname()[1]}")
        asked = asyncio.create_task(client.statistics())
        with (await asyncio.get_running_loop().sock_accept(sock))[0]:
            await client.close()
            with pytest.raises(StoreUnavailableError, match="its client was closed before GET /st"):
                await asked


async def test_what_a_killed_server_did_not_answer_is_done_once(tmp_path):
    path = str(tmp_path / "store.db")
    async with contextlib.AsyncExitStack() as stack:
        async with store_process(path) as (_, address):
            link = await stack.enter_async_context(Link(address))
            direct, client = LightningStoreClient(address), LightningStoreClient(link.url)
            for number in range(3):
                await direct.enqueue_rollout(number)
            done = await direct.dequeue_rollout("w")
            retried = await direct.start_rollout("retried")
            await client.turn(limit=0)  # asks what the server can do
            link.lose, link.held = lambda request: True, asyncio.Event()
            end = AttemptEnd(
                rollout_id=done.rollout_id, attempt_id=done.attempt.attempt_id, status="succeeded"
            )
            calls = [
                client.dequeue_rollout("w", wait_seconds=20),
                client.turn(finish=end, worker_id="w"),
                client.start_rollout("started"),
                client.start_attempt(retried.rollout_id),
            ]
            asked = [asyncio.ensure_future(call) for call in calls]
            async with asyncio.timeout(100):
                while (await direct.statistics())["total_attempts"] < 6:  # noqa: ASYNC110 (another process)
                    await asyncio.sleep(0.01)
        # Everything was stored, nothing was answered, and the server is killed.
        async with store_process(path, int(address.rpartition(":")[2])):
            link.held.set()
            link.lose, link.held = lambda request: False, None
            claimed, turned, started, attempt = await asyncio.gather(*asked)
            counts = await direct.statistics()
            assert (counts["total_attempts"], counts["total_rollouts"]) == (6, 5)
            assert {claimed.input, turned.claimed[0].input} == {1, 2}
            assert turned.attempt.status == "succeeded"
            assert started.input == "started"
            assert (attempt.rollout_id, attempt.attempt.sequence_id) == (retried.rollout_id, 2)
            await direct.close()
            await client.close()


def test_each_event_loop_gets_connections_of_its_own_and_closes_them():
    server = LightningStoreServer(InMemoryLightningStore(), port=0, open=True)
    asyncio.run(server.start())
    client = LightningStoreClient(server.endpoint)

    def work() -> None:
        for _ in range(3):
            asyncio.run(client.enqueue_rollout(1))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # What was left open would be warned of, and warnings are errors here.
    assert asyncio.run(client.statistics())["total_rollouts"] == 9
    asyncio.run(server.close())


async def test_close_from_elsewhere_while_a_loop_ends_is_no_error(client, caplog):
    async def close_late() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:  # by asyncio.run, which closes generators next
            closer = threading.Thread(target=lambda: asyncio.run(client.close()))
            closer.start()
            closer.join(0.3)

    async def use() -> None:
        await client.check_health()
        tasks.append(asyncio.create_task(close_late()))
        await asyncio.sleep(0)

    tasks: list[asyncio.Task[None]] = []
    await asyncio.to_thread(asyncio.run, use())
    assert [one.message for one in caplog.records if one.name == "asyncio"] == []


async def test_close_reaches_connections_of_other_loops(client):
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(client.statistics(), loop))
    await client.close()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    await client.close()
    assert await client.statistics()


async def test_a_pickled_client_is_a_client(client, server):
    copy = pickle.loads(pickle.dumps(client))
    rollout = await copy.enqueue_rollout(1)
    assert await server.get_rollout_by_id(rollout.rollout_id)
    await copy.close()


def _in_child(client: LightningStoreClient, pipe) -> None:
    pipe.send(asyncio.run(client.enqueue_rollout("child")).rollout_id)


@needs_fork
async def test_a_client_works_on_both_sides_of_a_fork(client):
    await client.statistics()
    child, mine = forked(_in_child, client)
    rollout_id = await asyncio.to_thread(mine.recv)
    await asyncio.to_thread(child.join)
    assert child.exitcode == 0
    assert (await client.get_rollout_by_id(rollout_id)).input == "child"
