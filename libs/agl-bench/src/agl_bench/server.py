"""A store server in a process of its own, and what a server costs."""

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import psutil

from agl.env import LightningEnvVar
from agl.errors import StoreError
from agl_http import wire
from agl_http.tokens import with_token

START_SECONDS = 90.0
STOP_SECONDS = 10.0


def own_command(path: Path | str) -> list[str]:
    """How our server is started, on a file or a database."""
    return [
        *(sys.executable, "-c", "from agl.cli import main; main()", "store"),
        *("--backend", "sqlite", "--path", str(path), "--log-level", "WARNING"),
    ]


@contextlib.contextmanager
def served(command: Sequence[str], log: Path) -> Generator[str]:
    """Start a server on a free port of this machine; its address, with a token in it.

    Args:
        command: Takes ``--host`` and ``--port`` after what is given.
        log: File for its output.

    Raises:
        StoreError: It did not start.
    """
    port, token = free_port(), secrets.token_urlsafe()
    process = start(command, port, log, token)
    try:
        wait_until_up(process, port, log)
        yield with_token(f"http://127.0.0.1:{port}", token)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(command: Sequence[str], port: int, log: Path, token: str) -> subprocess.Popen[bytes]:
    """Start the process, with the admin's token as given; it may not listen yet."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=log.parent,
            env={**os.environ, LightningEnvVar.AGL_SERVER_TOKEN: token},
        )


def wait_until_up(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until the server answers; it may take connections before it can.

    Raises:
        StoreError: It ended, or takes too long.
    """
    deadline = time.monotonic() + START_SECONDS
    while True:
        with (
            contextlib.suppress(OSError),
            urlopen(f"http://127.0.0.1:{port}{wire.HEALTH}", timeout=START_SECONDS),
        ):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            tail = log.read_text(errors="replace")[-1000:]
            raise StoreError(f"the server did not start (exit code {process.poll()}): {tail}")
        time.sleep(0.01)


class ServerCost:
    """CPU time and memory of a local server, its child processes included.

    Args:
        url: Where the server listens.
    """

    def __init__(self, url: str) -> None:
        self._process = _listener(url)

    @property
    def local(self) -> bool:
        """Whether the server is a process of this machine that may be looked at."""
        return self._process is not None

    def cpu_seconds(self) -> float:
        """So far; 0 when it is not local."""
        times = [process.cpu_times() for process in self._all()]
        return sum(each.user + each.system for each in times)

    def memory_mb(self) -> float:
        """Resident at this moment; 0 when it is not local."""
        return sum(process.memory_info().rss for process in self._all()) / 1e6

    def _all(self) -> list[psutil.Process]:
        if self._process is None:
            return []
        return [self._process, *self._process.children(recursive=True)]


def _listener(url: str) -> psutil.Process | None:
    """The process of this machine that listens at an address."""
    address = urlsplit(url)
    if address.hostname not in ("127.0.0.1", "localhost", "::1"):
        return None
    port = address.port or 80
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.AccessDenied, psutil.NoSuchProcess):
            connections = process.net_connections("tcp")
            if any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections):
                found.append(process)
    # A server's children inherit its socket: the oldest is the server.
    return min(found, key=lambda process: process.create_time(), default=None)
