"""The only network behind a wall: ports of loopback, each of which leads to one address outside."""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from agl.errors import ConfigError

MAX_CONNECTIONS = 64
"""Most connections of one attempt at a time; a further one is closed."""
CHUNK_BYTES = 65536


@dataclass(frozen=True)
class Routes:
    """Where an attempt may connect to."""

    listen: Mapping[tuple[str, int], tuple[str, int]]
    """Address behind the wall -> the one outside that it leads to."""
    hosts: Mapping[str, str]
    """Host name -> its address behind the wall."""
    addresses: tuple[str, ...]
    """IPv4 addresses that are to lead somewhere behind the wall, too."""

    def forwarder(self) -> "Forwarder":
        """What carries connections out."""
        return Forwarder([partial(asyncio.open_connection, *one) for one in self.listen.values()])


def routes_to(targets: Iterable[tuple[str, int]]) -> Routes:
    """The routes to some hosts and ports, which keep their names and numbers behind the wall.

    Raises:
        ConfigError: One is an IPv6 address other than ::1.
    """
    listen: dict[tuple[str, int], tuple[str, int]] = {}
    hosts: dict[str, str] = {}
    addresses: dict[str, None] = {}
    for host, port in targets:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            if host == "localhost":
                listen["127.0.0.1", port] = host, port
            else:
                inner = hosts.setdefault(host, f"127.1.0.{len(hosts) + 1}")
                listen[inner, port] = host, port
            continue
        if not address.is_loopback:
            if address.version == 6:
                raise ConfigError(
                    f"an agent behind a wall cannot be led to {host}: of IPv6 only ::1 can be; "
                    "give the host's name, or its IPv4 address"
                )
            addresses[host] = None
        listen[host, port] = host, port
    return Routes(listen, hosts, tuple(addresses))


def address_of(url: str) -> tuple[str, int]:
    """Host and port of an address.

    Raises:
        ConfigError: It has none.
    """
    try:
        parts = urlsplit(url if "//" in url else f"//{url}")
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        parts, port = urlsplit(""), None
    if not parts.hostname or not port:
        raise ConfigError(f"{url!r} has no host and port; write 'host:port' or a URL")
    return parts.hostname, port


def targets_of(resources: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Hosts and ports of the models among an attempt's resources."""
    return [address_of(each["endpoint"]) for each in resources.values() if "endpoint" in each]


Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class Forwarder:
    """Carries connections that come in on some sockets to where each leads.

    Args:
        connects: What connects to the target of each socket.
    """

    def __init__(self, connects: Sequence[Connect]) -> None:
        self._connects = connects
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, sockets: list[socket.socket]) -> None:
        """Serve the listening sockets, one for each target."""
        for sock, connect in zip(sockets, self._connects, strict=True):
            is_unix = sock.family == socket.AF_UNIX
            start = asyncio.start_unix_server if is_unix else asyncio.start_server
            self._servers.append(await start(partial(self._take, connect), sock=sock))

    def close(self) -> None:
        """End all connections."""
        for server in self._servers:
            server.close()
        for connection in self._connections:
            connection.cancel()

    def _take(
        self, connect: Connect, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if len(self._connections) >= MAX_CONNECTIONS:
            writer.close()
            return
        task = asyncio.create_task(_carry(reader, writer, connect))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connect: Connect
) -> None:
    with contextlib.suppress(OSError), contextlib.closing(writer.transport):
        their_reader, their_writer = await connect()
        with contextlib.closing(their_writer.transport):
            async with asyncio.TaskGroup() as both:
                both.create_task(_copy(reader, their_writer))
                both.create_task(_copy(their_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()
