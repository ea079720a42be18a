"""One worker of an LLM proxy with several; see ``workers``."""

import asyncio
import json
import os
import re
import socket
import sys
import zlib
from collections.abc import AsyncIterator, Iterable
from typing import Any, TextIO

import aiohttp

from agl.errors import ConfigError
from agl_gateway import LLMProxy
from agl_http.server import ServerThread

ADDRESS = re.compile(r"/rollout/[^/]+/attempt/(?P<attempt>[^/]+)/")
METRICS = re.compile(r"(?:/v1)?/metrics")
HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"host", b"te", b"upgrade"}
"""Headers of one connection, which are not handed on."""


def summed(expositions: Iterable[str]) -> str:
    """Metrics of several workers as those of one, in Prometheus' text format: the sums."""
    about: dict[str, list[str]] = {}
    values: dict[str, dict[str, float]] = {}
    for text in expositions:
        family: list[str] = []
        sums: dict[str, float] = {}
        for line in filter(None, text.split("\n")):
            if line.startswith("#"):
                name = line.split(" ")[2]
                family, sums = about.setdefault(name, []), values.setdefault(name, {})
                if line not in family:
                    family.append(line)
            else:
                series, _, value = line.rpartition(" ")
                sums[series] = sums.get(series, 0.0) + float(value)
    return "".join(
        f"{line}\n"
        for name, head in about.items()
        for line in (*head, *(f"{series} {value!r}" for series, value in values[name].items()))
    )


class _Taken:
    """An address that is bound already; in the place of the proxy's own."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.port = sock.getsockname()[1]

    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def bind(self) -> socket.socket:
        return self._sock


class Door:
    """Answers at the shared address: hands each request to the worker that has its attempt.

    Args:
        index: Of this worker, which has the calls of no attempt that come to it.
        ports: Of all.
    """

    def __init__(self, index: int, ports: list[int]) -> None:
        self._index, self._ports = index, ports
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            async with aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
            ) as self._session:
                await send({"type": "lifespan.startup.complete"})
                await receive()
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "http":
            try:
                if METRICS.fullmatch(scope["path"]):
                    await self._metrics(scope, send)
                else:
                    await self._hand_on(scope, receive, send)
            except aiohttp.ClientConnectionError:
                why = {"error": {"message": "this worker of the LLM proxy is gone", "code": 502}}
                await _say(send, 502, "application/json", json.dumps(why))

    async def _metrics(self, scope: Any, send: Any) -> None:
        """Answer with the sums of all workers; with what one of them says, where it refuses."""
        assert self._session is not None
        texts: list[str] = []
        status, kind = 0, ""
        for port in self._ports:
            url = f"http://127.0.0.1:{port}{scope['path']}"
            async with self._session.request(
                scope["method"], url, headers=_handed_on(scope)
            ) as given:
                texts.append(await given.text())
                status, kind = given.status, given.headers["content-type"]
            if status != 200:
                break
        await _say(send, status, kind, summed(texts) if status == 200 else texts[-1])

    def owner(self, path: str, headers: list[tuple[bytes, bytes]]) -> int:
        """Which worker has a request."""
        match = ADDRESS.match(path)
        attempt = match["attempt"] if match else dict(headers).get(b"x-attempt-id", b"").decode()
        return zlib.crc32(attempt.encode()) % len(self._ports) if attempt else self._index

    async def _hand_on(self, scope: Any, receive: Any, send: Any) -> None:
        assert self._session is not None
        port = self._ports[self.owner(scope["path"], scope["headers"])]
        query = f"?{scope['query_string'].decode()}" if scope["query_string"] else ""
        url = f"http://127.0.0.1:{port}{scope['raw_path'].decode()}{query}"
        whole = asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            while not whole.is_set():
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ConnectionResetError
                if not message.get("more_body"):
                    whole.set()
                yield message.get("body", b"")

        async def answer() -> None:
            assert self._session is not None
            async with self._session.request(
                scope["method"],
                url,
                headers=_handed_on(scope),
                data=body(),
                allow_redirects=False,
            ) as given:
                kept = [(k.lower(), v) for k, v in given.raw_headers if k.lower() not in HOP]
                start = {"type": "http.response.start", "status": given.status, "headers": kept}
                await send(start)
                async for chunk in given.content.iter_any():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

        async def gone() -> None:
            await whole.wait()
            while (await receive())["type"] != "http.disconnect":
                pass

        tasks = {asyncio.create_task(answer()), asyncio.create_task(gone())}
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for task in done:
            if isinstance(error := task.exception(), aiohttp.ClientConnectionError):
                raise error


async def _say(send: Any, status: int, kind: str, body: str) -> None:
    headers = [(b"content-type", kind.encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body.encode()})


def _handed_on(scope: Any) -> list[tuple[str, str]]:
    return [(k.decode(), v.decode("latin-1")) for k, v in scope["headers"] if k not in HOP]


async def serve(about: dict[str, Any], out: TextIO) -> None:
    """Serve until the parent says no more; then let calls in flight finish."""
    import agl

    def say(value: dict[str, Any]) -> None:
        out.write(json.dumps(value) + "\n")
        out.flush()

    settings = dict(about["proxy"])
    store = agl.LightningStoreClient(settings.pop("store"))
    added = settings.pop("added")
    shared, private = (socket.socket(about["family"], fileno=n) for n in about["sockets"])
    proxy = LLMProxy(store=store, **settings)
    for entry in added:
        proxy.add_model(entry)
    proxy.address = _Taken(private)  # pyright: ignore[reportAttributeAccessIssue]
    await proxy.start()
    door = ServerThread(Door(about["index"], about["ports"]), about["host"], sock=shared)
    await asyncio.to_thread(door.start)
    say({"value": True})
    while line := await asyncio.to_thread(sys.stdin.readline):
        what, args, named = json.loads(line)
        try:
            value = getattr(proxy, what)
            if callable(value):
                value = value(*args, **named)
            say({"value": await value if asyncio.iscoroutine(value) else value})
        except ConfigError as error:
            say({"refused": str(error)})
    await asyncio.to_thread(door.stop)
    await proxy.stop()
    await store.close()


if __name__ == "__main__":
    # What anybody prints must not stand among the answers.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        asyncio.run(serve(json.loads(sys.stdin.readline()), answers))
