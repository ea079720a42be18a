"""What happens behind the wall of ``docker``: one attempt, spoken of over the standard streams."""

import asyncio
import os
import socket
from collections.abc import Mapping
from functools import partial
from typing import Any, BinaryIO, NoReturn

from agl_sandbox import probe, shipping
from agl_sandbox.forked_worker import (
    HEADER_BYTES,
    FrameError,
    answer_call,
    decode,
    length_of,
)
from agl_sandbox.forwarding import Forwarder
from agl_sandbox.linux import die_with_parent
from agl_sandbox.sandbox import run_attempt


def main() -> NoReturn:
    """Take one call from the standard input, answer on the standard output, and end."""
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what the agent prints is no part of the answer

    def send(frame: bytes) -> None:
        outgoing.write(frame)
        outgoing.flush()

    answer_call(_work, lambda: _receive(incoming), send)


def _work(payload: Mapping[str, Any], ask: Any) -> Any:
    if payload["forward"]:
        _forward(payload["forward"])
    os.environ.update(HOME=payload["folder"], TMPDIR=payload["folder"])
    os.chdir(payload["folder"])
    if "probe" in payload:
        return probe.try_all(payload["probe"])
    agent, tracer = shipping.unpack(payload["shipment"])
    tracer.init()
    tracer.init_worker(0, None)
    return run_attempt(agent, tracer, payload["attempt"], ask)


def _receive(incoming: BinaryIO) -> dict[str, Any]:
    header = incoming.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        raise FrameError("the standard input has ended")
    return decode(incoming.read(length_of(header)))


def _forward(routes: list[list[Any]]) -> None:
    """Lead ports of this container to Unix sockets of the runner, in a process of its own.

    Args:
        routes: Host, port and path of each.
    """
    sockets: list[socket.socket] = []
    for host, port, _ in routes:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sockets.append(socket.create_server((host, port), family=family))
    if os.fork() != 0:
        for sock in sockets:
            sock.close()
        return
    die_with_parent()
    connects = [partial(asyncio.open_unix_connection, path) for *_, path in routes]

    async def serve() -> None:
        await Forwarder(connects).start(sockets)
        await asyncio.Event().wait()

    try:
        asyncio.run(serve())
    finally:
        os._exit(1)
