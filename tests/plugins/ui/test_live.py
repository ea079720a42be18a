"""The word that a store has changed, and its end with the server."""

import asyncio
import contextlib
import time
import urllib.request

import pytest
from tests.stores import opened, served

import agl
from agl_records.ledger.documents import put_parts
from agl_records.types import LedgerItem, LedgerPart
from agl_runs.records import RunStart
from agl_runs.store import begin_run, end_run
from agl_server.app import PAGES
from agl_sqlite.file import open_to_read
from agl_ui import live
from agl_ui.data_sources import DataSource, DataSources, file_source, server_source
from agl_ui.read_only_store import ReadOnlyStore
from agl_ui.server_routes import PAGES_OF_0_3, store_routes
from agl_ui.serving import Server

from .stores import apart, read


@pytest.fixture
def store(tmp_path):
    """A store in memory, with one rollout, behind a server with the page."""
    store = agl.InMemoryLightningStore()
    apart(store.enqueue_rollout("first"))
    return store


def first_line(stream):
    """What a stream of events begins with."""
    line = stream.readline().decode()
    assert line.startswith("retry:"), line
    return line


def change_in(stream):
    """The state of which a stream's next event tells."""
    told = [stream.readline().decode().strip() for _ in range(4)][1:]
    assert told[1] == "event: change"
    return told[0].removeprefix("id: ")


def test_a_change_is_told_and_a_known_state_is_not(serve, tmp_path):
    file = tmp_path / "store.db"
    store = agl.SqliteLightningStore(file)
    apart(store.enqueue_rollout("first"))
    address = f"{serve(file)}/s/{tmp_path.name}/events"
    with urllib.request.urlopen(address, timeout=30) as stream:
        first_line(stream)
        state = change_in(stream)
    with urllib.request.urlopen(f"{address}?since={state}", timeout=30) as stream:
        first_line(stream)
        apart(store.enqueue_rollout("second"))
        assert change_in(stream) != state
    apart(store.close())


def assert_ends_at_once(address, stop, seconds):
    with urllib.request.urlopen(address, timeout=60) as stream:
        first_line(stream)
        begin = time.monotonic()
        stop()
        assert time.monotonic() - begin < seconds
        stream.read()  # a stream that was cut off raises here


def test_streams_end_at_once_when_the_page_s_server_stops(tmp_path):
    file = tmp_path / "store.db"
    apart(agl.SqliteLightningStore(file).close())
    sources = DataSources(file_source(file))
    server = Server(sources, is_open=True)
    address = f"{server.start()}s/{tmp_path.name}/events"
    assert_ends_at_once(address, server.stop, 4.0)  # it would wait for five, and then cut it off
    apart(sources.close())


def server_of(store, **options):
    given = {"port": 0, "open": True, "extra_routes": store_routes(store), **options}
    server = agl.LightningStoreServer(store, **given)
    apart(server.start())
    return server


def test_streams_end_at_once_when_a_store_server_stops(store):
    server = server_of(store, drain_seconds=60.0)
    address = f"{server.endpoint}/ui/s/store/events"
    assert_ends_at_once(address, lambda: apart(server.stop()), 30.0)


def test_addresses_of_0_3s_dashboard_lead_to_their_pages(store):
    server = server_of(store)
    assert {"/", "/resources", "/workers", "/settings"} <= PAGES_OF_0_3.keys() == {*PAGES}
    for path, page in PAGES_OF_0_3.items():
        with urllib.request.urlopen(f"{server.endpoint}{path}", timeout=60) as answer:
            assert answer.url.startswith(f"{server.endpoint}/ui/s/store/{page}")
            assert answer.status == 200
    apart(server.stop())


async def _begin(store):
    """A store in which something of each kind can change."""
    await begin_run(store, RunStart(run_id="r", algorithm="grpo"))
    await store.add_resources({"p": agl.PromptTemplate(template="Hi")})
    await store.update_worker("w")
    for text in ("first", "second", "third"):
        await store.enqueue_rollout(text)
    await store.start_rollout("under way", worker_id="w")


async def _changed(store, status, *among):
    found = await store.query_rollouts(status_in=among)
    await store.update_rollout(found[0].rollout_id, status=status)


async def _accounted(store):
    of = {"rollout_id": (await store.query_rollouts(limit=1))[0].rollout_id}
    about = {"algorithm": "grpo", "step": 1, "mode": "train"}
    items = [LedgerItem(kind="rollout", **of)]
    await put_parts(store, [LedgerPart(**of, **about, items=items)])


CHANGES = {
    "resources": lambda store: store.add_resources({"p": agl.PromptTemplate(template="Hello")}),
    "a runner": lambda store: store.update_worker("another"),
    "a heartbeat": lambda store: store.update_worker("w"),
    "a cancelled rollout": lambda store: _changed(store, "cancelled", "queuing"),
    "a requeued rollout": lambda store: _changed(store, "requeuing", "preparing", "running"),
    "an account": _accounted,
    "another run": lambda store: begin_run(store, RunStart(run_id="s", algorithm="grpo")),
    "the end of a run": lambda store: end_run(store, "r", 1, outcome="finished"),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_whatever_a_tab_shows_is_seen_in_a_store_without_a_file(change):
    store = agl.InMemoryLightningStore()
    await _begin(store)
    source = DataSource("s", "s", ReadOnlyStore(store))
    before = await source.state()
    assert await source.state() == before
    await CHANGES[change](store)
    assert await source.state() != before


async def test_an_odd_error_ends_no_stream(monkeypatch, caplog):
    monkeypatch.setattr(live, "LOOK_SECONDS", 0.01)
    source = DataSource("s", "s", agl.InMemoryLightningStore())
    looks = []

    async def state():
        looks.append("look")
        if len(looks) in (2, 3):
            raise RuntimeError("the client is closed")
        return f"state {len(looks) > 3}"

    source.state = state
    told = live.Watch(source).follow("", asyncio.Event())
    assert await anext(told) == "state False"
    assert await anext(told) == "unreadable"
    assert await anext(told) == "state True"
    await told.aclose()
    said = [one for one in caplog.records if "cannot be looked at" in one.message]
    assert len(said) == 1  # the same twice in a row is told once


async def test_the_list_of_runs_has_a_state_of_all_stores(here):
    sources = DataSources()
    states = [await sources.state()]
    for name in ("one", "two"):
        (here / "agl-runs" / name).mkdir(parents=True)
        async with opened(here / "agl-runs" / name / "store.db") as store:
            states.append(await sources.state())
            await store.enqueue_rollout("t")
            states.append(await sources.state())
    assert len(set(states)) == len(states)
    await sources.close()


async def test_who_reads_a_store_does_not_change_its_state(tmp_path):
    file = tmp_path / "store.db"
    async with opened(file) as store:
        await store.enqueue_rollout("t")
    source = file_source(file)
    before = await source.state()
    with contextlib.closing(open_to_read(file)):
        assert file.with_name("store.db-wal").exists()
        assert await source.state() == before


async def test_a_token_that_is_refused_is_told_as_such():
    async with served(token="a" * 32) as (server, _):
        host = server.endpoint.rpartition("@")[2].removeprefix("http://")
        sources = DataSources(server_source(f"http://agl:{'b' * 32}@{host}"))
        pages = Server(sources, is_open=True)
        status, text = await asyncio.to_thread(read, f"{pages.start()}s/server/rollouts")
        await asyncio.to_thread(pages.stop)
        await sources.close()
    assert status == 403
    assert "<h1>The store refuses the token</h1>" in text
    assert "the token is missing or was refused" in text


async def test_a_stream_that_its_reader_leaves_leaves_no_task(monkeypatch):
    monkeypatch.setattr(live, "LOOK_SECONDS", 0.01)
    source = DataSource("s", "s", ReadOnlyStore(agl.InMemoryLightningStore()))
    wait, waits_now = asyncio.wait, asyncio.Event()

    async def noted(*about, **more):
        waits_now.set()
        return await wait(*about, **more)

    monkeypatch.setattr(asyncio, "wait", noted)
    before = asyncio.all_tasks()
    told = live.Watch(source).follow("", asyncio.Event())
    await anext(told)
    waits_now.clear()
    waits = asyncio.ensure_future(anext(told))
    await waits_now.wait()
    waits.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waits
    await told.aclose()
    _, left = await wait(asyncio.all_tasks() - before, timeout=10)
    assert not left
