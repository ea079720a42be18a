"""A Unix socket lets in its own user, and is taken from no server that lives."""

import asyncio
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.interpreter import AGL

import agl
from agl.errors import ConfigError
from agl_http.server import bind

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="has no Unix sockets")


@pytest.fixture
def path() -> Generator[str]:
    # Shorter than pytest's own, for the address of a socket holds about a hundred bytes.
    with tempfile.TemporaryDirectory() as folder:
        yield f"{folder}/An agl store.sock"


async def test_a_store_is_served_on_a_unix_socket(path: str) -> None:
    server = agl.LightningStoreServer(agl.InMemoryLightningStore(), uds=path)
    for _ in range(2):  # it comes back where it was
        await server.start()
        assert server.endpoint.endswith("%2FAn%20agl%20store.sock")
        assert os.stat(path).st_mode & 0o777 == 0o600
        client = agl.LightningStoreClient(server.endpoint)
        await client.enqueue_rollout("a task")
        assert len(await client.dequeue_many_rollouts()) == 1
        elsewhere = pickle.loads(pickle.dumps(server))
        assert len(await elsewhere.query_rollouts()) > 0
        await elsewhere.close()
        await client.close()
        await server.stop()
        assert os.listdir(os.path.dirname(path)) == []


def test_its_clients_and_proxies_may_call_it_anything(path: str) -> None:
    server = agl.LightningStoreServer(agl.InMemoryLightningStore(), uds=path)
    asyncio.run(server.start())
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: store.example\r\n\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
    asyncio.run(server.stop())


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="becomes another user")
def test_other_users_do_not_connect(path: str) -> None:
    os.chmod(os.path.dirname(path), 0o755)
    other = "import os, socket, sys; os.setuid(65534); socket.socket(1).connect(sys.argv[1])"

    def connect() -> str:
        run = [sys.executable, "-c", other, path]
        return subprocess.run(run, capture_output=True, text=True, timeout=60).stderr

    with bind(path, 0):
        assert "PermissionError" in connect()
        os.chmod(path, 0o666)
        assert connect() == ""  # so it was the mode that held them


def test_one_in_use_is_left_alone(path: str) -> None:
    with bind(path, 0), pytest.raises(ConfigError, match="in use"):
        bind(path, 0)
    assert not os.path.exists(path)


def test_of_many_that_replace_what_a_dead_server_left_one_listens(path: str) -> None:
    def start(_: int) -> socket.socket | None:
        try:
            return bind(path, 0)
        except ConfigError:
            return None

    for _ in range(20):
        dead = socket.socket(socket.AF_UNIX)
        dead.bind(path)
        dead.close()
        with ThreadPoolExecutor(4) as pool:
            listening = [sock for sock in pool.map(start, range(4)) if sock]
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
        assert len(listening) == 1
        listening[0].close()


def test_a_folder_that_others_write_to_is_refused(path: str) -> None:
    folder = os.path.dirname(path)
    for mode in (0o777, 0o1777, 0o720):
        os.chmod(folder, mode)
        with pytest.raises(ConfigError, match="others may write"):
            bind(path, 0)
    os.chmod(folder, 0o700)
    with pytest.raises(ConfigError, match="No such file"):
        bind(f"{folder}/none/agl.sock", 0)
    with pytest.raises(ConfigError, match="too long"):
        bind(f"{folder}/{'a' * 150}", 0)


def test_other_files_and_links_are_left_alone(path: str) -> None:
    Path(path).write_text("mine", encoding="utf-8")
    link = f"{path}.link"
    os.symlink(path, link)
    for taken in (path, link):
        with pytest.raises(ConfigError, match="another file"):
            bind(taken, 0)
    assert Path(link).read_text(encoding="utf-8") == "mine"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_neither_a_fork_nor_a_predecessor_removes_the_file(path: str) -> None:
    sock = bind(path, 0)
    if (child := os.fork()) == 0:
        sock.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert os.path.exists(path)
    os.unlink(path)
    with bind(path, 0), socket.socket(socket.AF_UNIX) as client:
        sock.close()
        client.connect(path)


def test_agl_store_listens_on_one_and_takes_it_along(path: str) -> None:
    run = [sys.executable, *AGL, "store", "--backend", "memory", "--uds", path]
    with subprocess.Popen(run, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        address = next(line for line in server.stderr if "agl store:" in line).split()[2]
        client = agl.LightningStoreClient(address)
        assert len(asyncio.run(client.query_rollouts())) == 0
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=30)
    assert server.returncode == 0
    assert not os.path.exists(path)


def test_a_run_serves_its_store_on_one(path: Path) -> None:
    @agl.rollout
    def agent(task: int) -> float:
        return task / 2

    statuses: list[str] = []

    @agl.algo
    async def algorithm(store: agl.LightningStore) -> None:
        rollout = await store.enqueue_rollout(1)
        ended = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=60)
        statuses.extend(one.status for one in ended)

    strategy = agl.ClientServerExecutionStrategy(server_host=str(path))
    agl.Trainer(algorithm=algorithm, strategy=strategy).fit(agent)
    assert statuses == ["succeeded"]
