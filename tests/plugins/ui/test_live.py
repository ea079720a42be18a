"""The word that a store has changed, and its end with the server."""

import time
import urllib.request

import pytest

import agl

from .stores import apart


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


def test_a_change_is_told_and_a_known_state_is_not(serve, tmp_path):
    file = tmp_path / "store.db"
    store = agl.SqliteLightningStore(file)
    apart(store.enqueue_rollout("first"))
    address = f"{serve(file)}/s/{tmp_path.name}/events"
    with urllib.request.urlopen(address, timeout=30) as stream:
        first_line(stream)
        told = [stream.readline().decode().strip() for _ in range(4)][1:]
        assert told[1] == "event: change"
        state = told[0].removeprefix("id: ")
    with urllib.request.urlopen(f"{address}?since={state}", timeout=30) as stream:
        first_line(stream)
        apart(store.enqueue_rollout("second"))
        told = [stream.readline().decode().strip() for _ in range(4)][1:]
        assert told[1] == "event: change"
        assert told[0] != f"id: {state}"
    apart(store.close())


def test_streams_end_at_once_when_the_page_s_server_stops(tmp_path):
    from agl_ui.places import Places, file_place
    from agl_ui.serving import Server

    file = tmp_path / "store.db"
    apart(agl.SqliteLightningStore(file).close())
    places = Places(file_place(file))
    server = Server(places, is_open=True)
    address = server.start()
    with urllib.request.urlopen(f"{address}s/{tmp_path.name}/events", timeout=60) as stream:
        first_line(stream)
        begin = time.monotonic()
        server.stop()
        assert time.monotonic() - begin < 4.0  # it would wait for five seconds, and then cut it off
        stream.read()  # a stream that was cut off raises here
    apart(places.close())


def test_streams_end_at_once_when_a_store_server_stops(store):
    from agl_ui.mounted import store_routes

    routes = store_routes(store)
    server = agl.LightningStoreServer(
        store, port=0, open=True, drain_seconds=60.0, extra_routes=routes
    )
    apart(server.start())
    address = f"{server.endpoint}/ui/s/store/events"
    with urllib.request.urlopen(address, timeout=60) as stream:
        first_line(stream)
        begin = time.monotonic()
        apart(server.stop())
        assert time.monotonic() - begin < 30.0
        stream.read()
