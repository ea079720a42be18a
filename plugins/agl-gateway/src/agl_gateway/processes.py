"""Several processes of a gateway behind one address: ``agl gateway --processes``.

Seeds, earlier answers and records that are not stored yet are in memory, each attempt's by itself.
So one process answers all requests of an attempt, as its id says, and others pass them on to it.
"""

import asyncio
import os
import signal
import socket
import sys
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from agl.errors import ConfigError
from agl_gateway.address import Address
from agl_gateway.asgi import Interruptible, Reply, read_body
from agl_gateway.errors import RefusedError
from agl_gateway.pool import Pool
from agl_http.layers import Receive, Scope
from agl_http.server import bind

ALONE = ("run_budget", "attempt_budget", "record", "replay", "tracker")
"""Options of what a process counts or writes by itself."""
NOT_PASSED = frozenset(b"host origin connection keep-alive transfer-encoding date expect".split())
SET_BY_POOL = (b"accept-encoding", b"content-type", b"content-length")
OF_ALL = ("/v1/flush", "/flush", "/v1/metrics", "/metrics")
STOPS = {signal.SIGTERM, signal.SIGINT}
SIGNALS = STOPS | {signal.SIGCHLD}
RESTART_SECONDS = 1.0


@dataclass
class Processes:
    """The addresses of all, as one of them sees them.

    Args:
        shared: Where all listen.
        ports: On loopback, where each can be asked by the others.
        number: Which of them this one is.
        own: Its socket there.
        since: ``time.monotonic()`` when this one may have got its first call.
        end: A file that can be read when all shall end.
    """

    shared: socket.socket
    ports: list[int]
    number: int
    own: socket.socket
    since: float
    end: int = -1
    _pool: Pool = field(default_factory=Pool)

    def stop_signal(self) -> asyncio.Event:
        """Set when all shall end, or this one."""
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_reader(self.end, stop.set)
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        return stop

    async def pass_on(
        self, scope: Scope, receive: Receive, reply: Reply, attempt_id: str, max_body_bytes: int
    ) -> bool:
        """Have the process of an attempt answer; False if this one shall.

        Raises:
            RefusedError: The body is too large, or the other process gave no answer.
            ClientGoneError: The client hung up first.
        """
        is_of_all = scope["path"] in OF_ALL
        if scope["server"][1] == self.ports[self.number]:  # another has passed it on
            reply.is_counted = not is_of_all
            return False
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
            if name not in NOT_PASSED and name not in SET_BY_POOL
        }
        attempt_id = attempt_id or headers.get("x-attempt-id", "")
        owner = zlib.crc32(attempt_id.encode()) % len(self.ports)
        is_own = owner == self.number or scope["method"] != "POST" or scope["path"] == "*"
        try:
            if is_of_all and not attempt_id:
                await self._ask_all(scope, headers, reply)
            elif is_own or not attempt_id:
                return False
            else:
                url = f"http://127.0.0.1:{self.ports[owner]}{scope['raw_path'].decode('latin-1')}"
                body = await read_body(receive, max_body_bytes)
                async with Interruptible(receive):
                    await self._ask(url, body, headers, reply)
        except (OSError, aiohttp.ClientError) as error:
            if reply.is_started:
                raise
            who = "one" if is_of_all else f"process {owner}"
            why = f"{who} of the gateway's processes gave no answer: {error}"
            raise RefusedError(502, why) from None
        return True

    async def _ask(self, url: str, body: bytes, headers: dict[str, str], reply: Reply) -> None:
        answer = await self._pool.post(url, body, headers)
        given = ((name.encode(), value.encode("latin-1")) for name, value in answer.headers.items())
        reply.is_counted = False  # the other one counts it
        try:
            await reply.start(answer.status, [one for one in given if one[0] not in NOT_PASSED])
            async for piece in answer.chunks():
                await reply.write(piece)
            await reply.end()
        finally:
            answer.close()

    async def _ask_all(self, scope: Scope, headers: dict[str, str], reply: Reply) -> None:
        """Answer with the sum of what all answer, or with what one says that refuses."""
        texts, kind = list[str](), list[tuple[bytes, bytes]]()
        async with aiohttp.ClientSession(headers=headers) as session:
            for port in self.ports:
                url = f"http://127.0.0.1:{port}{scope['path']}"
                async with session.request(scope["method"], url) as answer:
                    texts.append(await answer.text())
                    kind = [(b"content-type", answer.headers["content-type"].encode())]
                    if answer.status != 200:
                        return await reply.whole(answer.status, texts[-1].encode(), kind)
        text = summed(texts) if scope["path"].endswith("/metrics") else texts[-1]
        return await reply.whole(200, text.encode(), kind)


def summed(expositions: Iterable[str]) -> str:
    """Metrics of several processes as those of one, in Prometheus' text format: the sums."""
    families: dict[str, dict[str, float]] = {}
    head, sums = "", dict[str, float]()
    for line in (line for text in expositions for line in text.splitlines()):
        if line.startswith("# HELP"):
            head = line
        elif line.startswith("#"):
            sums = families.setdefault(f"{head}\n{line}", {})
        else:
            series, _, value = line.rpartition(" ")
            sums[series] = sums.get(series, 0.0) + float(value)
    return "".join(
        f"{line}\n"
        for head, sums in families.items()
        for line in (head, *(f"{series} {value!r}" for series, value in sums.items()))
    )


def fork(count: int, address: Address, options: dict[str, Any], greeting: str) -> Processes:
    """Returns in each of so many processes, and in another one in the place of one that was killed.

    Not so in the parent. There SIGTERM and SIGINT end all, and so does an error in one, with its
    exit code; one that SIGTERM ends is started again. Their own ports are those after the gateway's
    ``port``, or any if that is 0.

    Raises:
        ConfigError: An option is for one process, or a port is in use or none.
    """
    if alone := [name for name in ALONE if options.get(name) is not None]:
        raise ConfigError(
            f"--processes {count} with {alone[0]}: each process would have its own. Leave out one "
            "of the two"
        )
    port = options["port"]
    if port + count > 65535:
        raise ConfigError(
            f"--port {port} with --processes {count}: each has one of the ports after it, and the "
            "last one is 65535. Choose a lower one"
        )
    shared = address.bind()
    own = [bind("127.0.0.1", port and port + 1 + n) for n in range(count)]
    ports: list[int] = [one.getsockname()[1] for one in own]
    # What can be read when all shall end, and what only the parent has: it may be killed.
    end, no_end = os.pipe()
    signal.signal(signal.SIGCHLD, lambda *_: None)  # else some systems do not tell it
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    children, missing, code = dict[int, int](), list(range(count)), None
    since = time.monotonic()
    sys.stderr.write(f"{greeting}\n")
    while missing or children:
        for number in missing:
            if (pid := os.fork()) == 0:
                os.close(no_end)
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's comes to the parent too
                signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
                return Processes(shared, ports, number, own[number], since, end)
            children[pid] = number
        missing = []
        if signal.sigwait(SIGNALS) != signal.SIGCHLD:
            code = code or 0
        while children and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            number = children.pop(ended[0], None)
            if number is None:  # a child of what this process was before it became the gateway
                continue
            if (status := os.waitstatus_to_exitcode(ended[1])) > 0:
                code = code or status
            elif code is None:
                sys.stderr.write(f"agl gateway: process {number} was ended; it starts again\n")
                time.sleep(RESTART_SECONDS)
                since = time.monotonic()
                if not signal.sigpending() & STOPS:
                    missing.append(number)
        if code is not None and no_end:
            os.close(no_end)
            no_end = 0
            for pid in children:  # before it serves, it does not read the pipe
                os.kill(pid, signal.SIGTERM)
    sys.exit(code)
