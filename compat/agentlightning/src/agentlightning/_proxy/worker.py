"""One worker of an LLM proxy with several; see ``workers``."""

import asyncio
import json
import os
import re
import socket
import sys
import zlib
from collections.abc import Iterable
from typing import Any, TextIO

from aiohttp import ClientConnectionError, ClientSession, ClientTimeout, TCPConnector, web

from agl.errors import ConfigError
from agl_gateway import LLMProxy
from agl_http.metrics import CONTENT_TYPE

ADDRESS = re.compile(r"/rollout/[^/]+/attempt/(?P<attempt>[^/]+)/")
METRICS = re.compile(r"(?:/v1)?/metrics")
HOP = {"connection", "keep-alive", "transfer-encoding", "host", "te", "upgrade"}
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
        session: Asks them.
    """

    def __init__(self, index: int, ports: list[int], session: ClientSession) -> None:
        self._index, self._ports, self._session = index, ports, session

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one request; who made it and is gone cancels it."""
        answer = web.StreamResponse()
        try:
            if METRICS.fullmatch(request.path):
                return await self._metrics(request)
            return await self._hand_on(request, answer)
        except ClientConnectionError:
            if answer.prepared:
                raise
            why = {"error": {"message": "this worker of the LLM proxy is gone", "code": 502}}
            return web.json_response(why, status=502)

    def _ask(self, request: web.Request, port: int) -> Any:
        return self._session.request(
            request.method,
            f"http://127.0.0.1:{port}{request.raw_path}",
            headers=[(k, v) for k, v in request.headers.items() if k.lower() not in HOP],
            data=request.content if request.body_exists else None,
            allow_redirects=False,
        )

    async def _metrics(self, request: web.Request) -> web.Response:
        """The sums of all workers; what one of them says, where it refuses."""
        texts: list[str] = []
        for port in self._ports:
            async with self._ask(request, port) as given:
                texts.append(await given.text())
                if given.status != 200:
                    kind = {"Content-Type": given.headers["Content-Type"]}
                    return web.Response(text=texts[-1], status=given.status, headers=kind)
        return web.Response(text=summed(texts), headers={"Content-Type": CONTENT_TYPE})

    def owner(self, request: web.Request) -> int:
        """Which worker has a request."""
        match = ADDRESS.match(request.path)
        attempt = match["attempt"] if match else request.headers.get("x-attempt-id", "")
        return zlib.crc32(attempt.encode()) % len(self._ports) if attempt else self._index

    async def _hand_on(
        self, request: web.Request, answer: web.StreamResponse
    ) -> web.StreamResponse:
        async with self._ask(request, self._ports[self.owner(request)]) as given:
            answer.set_status(given.status, given.reason)
            for name, value in given.headers.items():
                if name.lower() not in HOP:
                    answer.headers.add(name, value)
            await answer.prepare(request)
            async for chunk in given.content.iter_any():
                await answer.write(chunk)
        await answer.write_eof()
        return answer


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
    async with ClientSession(
        connector=TCPConnector(limit=0), timeout=ClientTimeout(total=None), auto_decompress=False
    ) as session:
        app = web.Application()
        app.router.add_route(
            "*", "/{path:.*}", Door(about["index"], about["ports"], session).answer
        )
        door = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await door.setup()
        await web.SockSite(door, shared).start()
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
        await door.cleanup()
    await proxy.stop()
    await store.close()


if __name__ == "__main__":
    # What anybody prints must not stand among the answers.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        asyncio.run(serve(json.loads(sys.stdin.readline()), answers))
