"""A server as a process: held requests, options, ports, forks, and ``agl store``."""

import asyncio
import multiprocessing
import os
import pickle
import socket
import subprocess
import sys
import time

import aiohttp
import pytest

from agl.errors import ConfigError, StoreError
from agl_http.server import ServerThread, bind
from agl_server.server import LightningStoreServer

from .store_calls import claim, enqueue, get, post, store_process


@pytest.mark.parametrize(
    ("option", "value"), [("n_workers", 2), ("launch_mode", "mp"), ("launcher_args", object())]
)
def test_options_that_are_not_honoured_are_refused_by_name(store, option, value):
    with pytest.raises(ConfigError, match=option):
        LightningStoreServer(store, **{option: value})


async def test_a_bound_socket_is_served(store):
    sock = bind("127.0.0.1", 0)
    port = sock.getsockname()[1]
    server = LightningStoreServer(store, sock=sock)
    assert server.address == f"http://127.0.0.1:{port}"
    await server.start()
    await server.start()
    async with aiohttp.ClientSession() as http:
        await get(http, f"{server.endpoint}/v1/agl/health")
    await server.stop()
    await server.stop()


async def test_a_stopped_server_starts_again_where_it_was(server, http):
    (rollout_id,) = await enqueue(http, 1)
    endpoint = server.endpoint
    await server.stop()
    await server.start()
    assert server.endpoint == endpoint
    await get(http, f"rollouts/{rollout_id}")


async def test_an_application_that_fails_to_start_is_an_error():
    async def app(scope, receive, send):
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no"})

    with pytest.raises(StoreError, match="did not start"):
        ServerThread(app).start()


def needs_fork(test):
    of_threads = "ignore:This process .* is multi-threaded:DeprecationWarning"
    wanted = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    return wanted(pytest.mark.filterwarnings(of_threads)(test))


def forked(work, *given):
    """A child of this process that has begun, and the end of a pipe that its work writes to."""
    mine, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=work, args=(*given, theirs))
    child.start()
    return child, mine


def _in_child(server: LightningStoreServer, pipe) -> None:
    rollout = asyncio.run(server.enqueue_rollout("from the child"))
    pipe.send((rollout.rollout_id, type(server.target).__name__))


@needs_fork
async def test_in_a_forked_process_the_server_is_a_client(server, store):
    child, mine = forked(_in_child, server)
    rollout_id, kind = await asyncio.to_thread(mine.recv)
    await asyncio.to_thread(child.join)
    assert kind == "LightningStoreClient"
    assert (await store.get_rollout_by_id(rollout_id)).input == "from the child"
    assert server.target is store


async def test_a_pickled_server_is_a_client(server, store):
    copy = pickle.loads(pickle.dumps(server))
    rollout = await copy.enqueue_rollout(1)
    assert await store.get_rollout_by_id(rollout.rollout_id)
    assert copy.endpoint == server.endpoint
    with pytest.raises(StoreError, match="another process"):
        await copy.start()
    await copy.close()
    assert await server.statistics()


def _sleep(pipe) -> None:
    pipe.send("up")
    time.sleep(30)


@needs_fork
async def test_a_forked_process_does_not_hold_the_port(server, http):
    await get(http, "health")
    port = int(server.endpoint.rpartition(":")[2])
    child, mine = forked(_sleep)
    try:
        await asyncio.to_thread(mine.recv)
        await server.stop()
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
        bind("127.0.0.1", port).close()
    finally:
        child.kill()
        child.join()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a kept port cannot be bound")
def test_a_kept_port_is_given_to_who_names_it_and_to_nobody_else():
    with bind("127.0.0.1", 0, listen=False) as kept:
        port = kept.getsockname()[1]
        for _ in range(20_000):
            with socket.socket() as other:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                other.bind(("127.0.0.1", 0))
                assert other.getsockname()[1] != port
        with bind("127.0.0.1", port), pytest.raises(ConfigError, match="is in use"):
            bind("127.0.0.1", port)


STORE = [sys.executable, "-c", "from agl.cli import main; main()", "store"]


async def test_sigterm_answers_held_requests_and_ends_with_0(tmp_path):
    async with (
        store_process(tmp_path / "s.db") as (process, url),
        aiohttp.ClientSession(f"{url}/v1/agl/") as http,
    ):
        rollout_ids = await enqueue(http, 1)
        assert len(await claim(http)) == 1
        work = asyncio.create_task(claim(http, wait_seconds=60))
        end = asyncio.create_task(post(http, "waits/rollouts", {"rollout_ids": rollout_ids}))
        await asyncio.sleep(0.2)
        begin = time.monotonic()
        process.terminate()
        assert (await work, await end) == ([], [])
        assert await process.wait() == 0
        assert time.monotonic() - begin < 30


async def test_agl_store_says_in_one_line_what_is_wrong(server, tmp_path):
    port = server.endpoint.rpartition(":")[2]
    for options, word in (
        (["--port", port, "--path", str(tmp_path / "s.db")], f"port {port} on 127.0.0.1 is in use"),
        (["--port", "0", "--path", str(tmp_path / "no" / "folder" / "s.db")], "no/folder"),
        (["--port", "0", "--host", "0.0.0.0", "--backend", "memory"], "token"),
    ):
        done = await asyncio.to_thread(
            subprocess.run, [*STORE, *options], stderr=subprocess.PIPE, text=True
        )
        assert done.returncode == 2
        assert word in done.stderr
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "s.db").exists()
