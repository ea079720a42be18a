"""Two checkouts of this repository, asked the same: do they answer the same?

    python benchmarks/same_answers.py /path/to/old /path/to/new

A gate for changes that must not be noticed. Each checkout runs in processes of its own, with its
sources first on the path, and is asked what stands in ``same_answers_cases.py``:

    calls      every method of a store, with arguments of many shapes: what it answers or raises;
               over a client also what goes over the wire, over a store of somebody else's also
               which arguments arrive there
    requests   raw HTTP to a server: status, headers that matter, body
    openapi    how the server describes itself; its names and sentences only with ``--words``

over the stores ``memory`` and ``sqlite``. Only public names and real HTTP are used, so that the
inside may move. Ids, times and keys that are made are replaced by their order of appearance. What
differs is printed; exit code 1 when anything does.
"""

import argparse
import asyncio
import contextlib
import gzip
import http.client
import inspect
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import same_answers_cases as cases

PARTS = ("calls", "requests", "openapi")
STORES = ("memory", "sqlite")
CALL_SECONDS = 30.0
SHOWN = 40
"""So many differences are printed."""
HEADERS = (
    *("agl-wait-ended", "allow", "connection", "content-encoding", "content-type"),
    *("retry-after", "www-authenticate"),
)
WORDS = ("description", "operationId", "summary", "title")

Found = list[tuple[str, str]]
"""What was asked, and the answer."""

# --- what is not the same twice


class Names:
    """Replaces what is made up at run time by its order of appearance."""

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}

    def plain(self, text: str) -> str:
        """The text without ids, times, ports and paths of this run."""
        text = re.sub(r"\b(ro|at|rs)-[0-9a-f]{9,}\b", self._number, text)
        text = re.sub(r"\b(attempt|model)(\.\d+){2}\.[^.\"]+\.\w+", r"\1 TOKEN", text)
        text = re.sub(r"\bagl\.[\w.]*\b(?=\w)", "", text)  # modules move
        text = re.sub(r"\b\d{9,}\.\d+(e\+\d+)?\b", "TIME", text)
        text = re.sub(r'("uptime"|uptime_seconds)(: ?| )[\d.e-]+', r"\1 SOME", text)
        text = re.sub(r"(_sum|_bucket)(\{.*\}) .*", r"\1\2", text)
        text = re.sub(r"(127\.0\.0\.1|localhost):\d+", "HOST", text)
        text = re.sub(r"for \d+ s \(", "for SOME s (", text)
        return re.sub(re.escape(tempfile.gettempdir()) + r"[^'\" ]*", "FILE", text)

    def _number(self, match: re.Match[str]) -> str:
        found = match[0]
        return self._seen.setdefault(found, f"{found[:2]}-#{len(self._seen)}")

    def shown(self, value: Any) -> str:
        """A value of Python as text, with its types."""
        return self.plain(json.dumps(_shape(value), default=repr))


def _shape(value: Any) -> Any:
    kind = type(value).__name__
    if hasattr(value, "model_dump"):
        fields = {name: _shape(getattr(value, name)) for name in type(value).model_fields}
        return {"": kind.partition("[")[0], **fields, **(value.model_extra or {})}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"": kind, **{name: _shape(getattr(value, name)) for name in value._fields}}
    if isinstance(value, list | tuple | set | frozenset):
        return [_shape(one) for one in value]
    if isinstance(value, dict):
        return {str(name): _shape(one) for name, one in value.items()}
    return value


# --- stores of many kinds


def open_store(agl: Any, kind: str, folder: Path) -> Any:
    """A fresh store."""
    if kind == "memory":
        return agl.InMemoryLightningStore()
    number = len(list(folder.iterdir()))
    return agl.SqliteLightningStore(folder / f"{number}.db", durability="process")


def unsafe(agl: Any, store: Any) -> Any:
    """Somebody else's store, which is not thread-safe; its ``arrived`` notes what it is given."""

    class Foreign(agl.LightningStore):
        arrived: list[str]

    def passed_on(name: str) -> Any:
        async def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(TypeError):
                given = inspect.signature(getattr(store, name)).bind(*args, **kwargs).arguments
                self.arrived.append(f"{name}({', '.join(sorted(given))})")
            return await getattr(store, name)(*args, **kwargs)

        return method

    for name in set(cases.METHODS) - cases.DERIVED:
        setattr(Foreign, name, passed_on(name))
    Foreign.__abstractmethods__ = frozenset()
    foreign = Foreign()
    foreign.arrived = []
    return foreign


class Tap:
    """Stands between a client and a server and notes every request.

    Args:
        address: The server's.
        hidden: Features that ``/health`` does not show, and whose paths there are not.
    """

    def __init__(self, address: str, hidden: bool = False) -> None:
        self._backend = urlsplit(address)
        self._hidden = hidden
        self.requests: list[str] = []

    async def __aenter__(self) -> "Tap":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines)
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            target = first.split(" ")[1]
            self.requests.append(self._noted(first, headers, body))
            gone = target in ("/v1/agl/spans/batch", "/v1/agl/turn")
            if self._hidden and (gone or target == "/v1/agl/health"):
                status, answer = (404, b'{"detail":"Not Found"}') if gone else (200, b"{}")
                head = f"HTTP/1.1 {status} OK\r\ncontent-length: {len(answer)}\r\n"
                writer.write(f"{head}connection: close\r\n\r\n".encode() + answer)
            else:
                back, to = await asyncio.open_connection(self._backend.hostname, self._backend.port)
                kept = [line for line in lines if not line.lower().startswith("connection:")]
                to.write("\r\n".join([first, *kept, "Connection: close", "", ""]).encode() + body)
                writer.write(await back.read())
                to.close()
            await writer.drain()
        writer.close()

    @staticmethod
    def _noted(first: str, headers: dict[str, str], body: bytes) -> str:
        shown: Any = body.decode()
        request = headers.get("idempotency-key", "")
        with contextlib.suppress(ValueError):
            shown = _without_keys(json.loads(body), request)
        path, _, query = first.partition("?")
        first = f"{path} {sorted(query.removesuffix(' HTTP/1.1').split('&'))}"
        kind = headers.get("content-type", "")
        return f"{first} {kind} {'keyed' if request else ''} {json.dumps(shown, sort_keys=True)}"


def _without_keys(value: Any, request: str) -> Any:
    """A body without the keys that the client made up."""
    if isinstance(value, list):
        return [_without_keys(one, request) for one in value]
    if not isinstance(value, dict):
        return value
    found = {name: _without_keys(one, request) for name, one in value.items()}
    key = found.get("key")
    for name in ("wait_seconds", "timeout"):  # what is left of it
        if isinstance(found.get(name), float):
            found[name] = round(found[name], 2)
    if isinstance(key, str) and len(key.lower()) >= 16:
        found["key"] = "REQUEST" if key.lower() == request else f"MADE{key[16:]}"
    return found


@contextlib.asynccontextmanager
async def face(agl: Any, way: str, store: Any) -> AsyncGenerator[tuple[Any, list[str]]]:
    """The store as somebody sees it, and a list of what goes on behind."""
    if way == "itself":
        yield store, []
    elif way in ("server", "threaded", "foreign"):
        behind = unsafe(agl, store) if way != "server" else store
        kind = agl.LightningStoreThreaded if way == "threaded" else agl.LightningStoreServer
        front = kind(behind) if way == "threaded" else kind(behind, port=0)
        yield front, getattr(behind, "arrived", [])
        await front.close()
    else:
        behind = unsafe(agl, store) if way == "foreign-client" else store
        server = agl.LightningStoreServer(behind, port=0, token=cases.TOKEN)
        await server.start()
        async with Tap(server.endpoint, hidden=way == "older-client") as tap:
            client = agl.LightningStoreClient(tap.url, retry_delays=(), token=cases.TOKEN)
            yield client, getattr(behind, "arrived", tap.requests)
            await client.close()
        await server.close()


WAYS = ("itself", "server", "threaded", "foreign", "client", "older-client", "foreign-client")

# --- asking one checkout


async def ask_calls(agl: Any, kind: str, folder: Path, only: str) -> Found:
    """Every method in every way."""
    found: Found = []
    for way in WAYS:
        for method in (one for one in cases.METHODS if only in one):
            store = open_store(agl, kind, folder)
            scene = await cases.make_scene(agl, store)
            async with face(agl, way, store) as (front, behind):
                names = Names()
                signature = str(inspect.signature(getattr(front, method)))
                found.append((f"{way} {method}: signature", names.plain(signature)))
                for label, args, kwargs in cases.calls(agl, method, scene):
                    behind.clear()
                    answer = await _call(names, getattr(front, method), args, kwargs)
                    found.append((f"{way} {method}({label}): answer", answer))
                    if way != "itself":
                        text = " | ".join(names.plain(one) for one in behind)
                        found.append((f"{way} {method}({label}): behind", text))
                found.append((f"{way} {method}: left", await _left(names, store)))
            await store.close()
    return found


async def _call(names: Names, method: Callable[..., Any], args: Any, kwargs: Any) -> str:
    try:
        async with asyncio.timeout(CALL_SECONDS):
            return names.shown(await method(*args, **kwargs))
    except Exception as error:
        text = str(error)
        if isinstance(error, TypeError):  # a method may be defined in another class
            text = re.sub(r"^[\w.<>]+\(\)", f"{method.__name__}()", text)
        return f"{type(error).__name__}: {names.plain(text)}"


async def _left(names: Names, store: Any) -> str:
    """What the store holds in the end."""
    found: list[Any] = [await store.query_workers(), await store.query_resources()]
    for rollout in await store.query_rollouts():
        found += [rollout, *await store.query_attempts(rollout.rollout_id)]
        found += await store.query_spans(rollout.rollout_id)
    return names.shown([*found, await store.query_documents("note")])


async def ask_requests(agl: Any, kind: str, folder: Path, only: str) -> Found:
    """Every raw request."""
    found: Found = []
    for group, requests in cases.requests().items():
        if only not in group:
            continue
        store = open_store(agl, kind, folder)
        scene = await cases.make_scene(agl, store)
        server = agl.LightningStoreServer(store, port=0, token=cases.TOKEN, max_body_bytes=200_000)
        await server.start()
        names = Names()
        address = urlsplit(server.endpoint)
        for number, request in enumerate(requests):
            request = cases.filled(request, scene)
            headers = {} if group == "token" else cases.AUTHORIZED
            answer = await asyncio.to_thread(_raw, address, names, request, headers)
            label = f"{group} {number} {request.method} {request.target} {request.body[:160]!r}"
            found.append((names.plain(label), answer))
        found.append((f"{group}: left", await _left(names, store)))
        await server.close()
    return found


def _raw(address: Any, names: Names, request: cases.Request, headers: dict[str, str]) -> str:
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=CALL_SECONDS)
    try:
        connection.putrequest(request.method, request.target, skip_accept_encoding=True)
        for name, value in (request.headers | headers).items():
            connection.putheader(name, value)
        connection.putheader("Content-Length", str(len(request.body)))
        connection.endheaders(request.body)
        response = connection.getresponse()
        body = response.read()
        if response.getheader("content-encoding") == "gzip":
            body = gzip.decompress(body)
        given = {name: response.getheader(name) for name in HEADERS if response.getheader(name)}
        return f"{response.status} {given} {names.plain(body.decode('utf-8', 'replace'))}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        connection.close()


async def ask_openapi(agl: Any, kind: str, folder: Path, only: str) -> Found:
    """The description, one entry for each leaf, references resolved."""
    server = agl.LightningStoreServer(open_store(agl, kind, folder), port=0, token=cases.TOKEN)
    await server.start()
    address = urlsplit(server.endpoint)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=CALL_SECONDS)
    connection.request("GET", "/openapi.json", headers=cases.AUTHORIZED)
    described = json.loads(await asyncio.to_thread(lambda: connection.getresponse().read()))
    await server.close()
    schemas = described.pop("components")["schemas"]
    known = {(verb, path) for path, verbs in described["paths"].items() for verb in verbs}
    asked = {
        (one.method.lower(), one.route) for group in cases.requests().values() for one in group
    }
    missing = [("openapi: not asked", str(sorted(known - asked)))]
    leaves = [*missing, *_leaves("", described, schemas, ())]
    return [(where, value) for where, value in leaves if only in where]


def _leaves(
    where: str, value: Any, schemas: dict[str, Any], inside: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        if name in inside:  # a schema of itself
            yield where, "again"
            return
        value, inside = schemas[name], (*inside, name)
    if isinstance(value, dict):
        for key, one in sorted(value.items()):
            if key == "mapping":  # of a discriminator: names of schemas
                one = {word: {"$ref": name} for word, name in one.items()}
            yield from _leaves(f"{where}/{key}", one, schemas, inside)
    elif isinstance(value, list):
        for number, one in enumerate(_in_order(value)):
            yield from _leaves(f"{where}/{number}", one, schemas, inside)
    else:
        yield where, json.dumps(value)


def _in_order(values: list[Any]) -> list[Any]:
    """Parameters and the like, whose order says nothing, in that of their names."""
    return sorted(values, key=lambda one: one.get("name", "") if isinstance(one, dict) else "")


# --- comparing two


def main() -> int:
    """Ask both and compare."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("old", type=Path)
    options.add_argument("new", type=Path)
    options.add_argument("--part", choices=PARTS, action="append")
    options.add_argument("--store", choices=STORES, action="append")
    options.add_argument("--words", action="store_true", help="names and sentences of OpenAPI, too")
    options.add_argument("--only", default="", help="methods, routes and places with this in them")
    options.add_argument("--show", type=int, default=SHOWN, help="print so many differences")
    given = options.parse_args()
    num_differences = 0
    for part in given.part or PARTS:
        for store in given.store or STORES:
            old, new = (_answers(path, part, store, given.only) for path in (given.old, given.new))
            if part == "openapi" and not given.words:
                old, new = ({k: v for k, v in one.items() if not _is_word(k)} for one in (old, new))
            differ = [key for key in {**old, **new} if old.get(key) != new.get(key)]
            print(f"{part} over {store}: {len(old)} answers, {len(differ)} differ", flush=True)
            for key in differ[: max(given.show - num_differences, 0)]:
                print(f"  {key}\n    - {old.get(key)}\n    + {new.get(key)}")
            num_differences += len(differ)
    return 1 if num_differences else 0


def _is_word(key: str) -> bool:
    return key.rpartition("/")[2] in WORDS and "/properties/title" not in key


def _answers(checkout: Path, part: str, store: str, only: str) -> dict[str, str]:
    """What a checkout answers, asked in a process of its own."""
    sources = checkout.resolve() / "core" / "src"
    if not sources.is_dir():
        raise SystemExit(f"{checkout}: no checkout of this repository; core/src is not there")
    found = subprocess.run(
        [sys.executable, __file__, "--ask", str(sources), part, store, only],
        env={**os.environ, "PYTHONPATH": str(sources), "PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(found.stdout)


def ask(sources: str, part: str, store: str, only: str) -> None:
    """The other side of ``_answers``."""
    import agl

    assert Path(agl.__file__).is_relative_to(sources), f"{agl.__file__} is not in {sources}"
    logging.disable(logging.CRITICAL)
    asked = {"calls": ask_calls, "requests": ask_requests, "openapi": ask_openapi}[part]
    with tempfile.TemporaryDirectory() as folder:
        found = dict(asyncio.run(asked(agl, store, Path(folder), only)))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ask"]:
        ask(*sys.argv[2:])
    else:
        sys.exit(main())
