"""What web pages, other sites' names and endless requests do to a server on loopback: nothing.

Sent as bytes, as no client would send them. What holds an attack is taken away for
``test_attack_works_where_it_is_let``, which shows that each of them would do something.
"""

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

import agl
from agl_http import guard
from agl_http.layers import send_whole
from agl_http.server import ServerThread, bind
from agl_server.app import store_app
from agl_server.routes import StoreRoutes
from agl_testing.echo_llm import EchoLLM

TOKEN = "t" * 16
BEARER = f"Authorization: Bearer {TOKEN}"
DEQUEUE = "/v1/agl/queues/rollouts/dequeue"
JSON = "Content-Type: application/json"


@dataclass
class Sender:
    """Sends to a port what it is told."""

    port: int

    def __call__(self, path, *headers, body="{}", verb="POST") -> tuple[int, str]:
        if not any(header.startswith("Host:") for header in headers):
            headers = (f"Host: 127.0.0.1:{self.port}", *headers)
        head = "\r\n".join([f"{verb} {path} HTTP/1.1", *headers, f"Content-Length: {len(body)}"])
        return exchange(self.port, f"{head}\r\n\r\n{body}".encode())


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def first_line(sock: socket.socket) -> bytes:
    return sock.recv(65536).split(b"\r\n")[0]


def exchange(port: int, sent: bytes) -> tuple[int, str]:
    """Status and body."""
    with connect(port) as sock:
        sock.sendall(sent)
        answer = sock.recv(65536)
        sock.shutdown(socket.SHUT_WR)  # whose answer is under way: the server hangs up, too
        answer += b"".join(iter(lambda: sock.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


@pytest.fixture
def store() -> agl.LightningStore:
    store = agl.InMemoryLightningStore()
    asyncio.run(store.enqueue_rollout("the answer is 42"))
    return store


@pytest.fixture
def serve(store: agl.LightningStore) -> Generator[Callable[..., Sender]]:
    servers: list[agl.LightningStoreServer] = []

    def start(**options: str) -> Sender:
        server = agl.LightningStoreServer(store, port=0, open="token" not in options, **options)
        servers.append(server)
        asyncio.run(server.start())
        return Sender(urlsplit(server.endpoint).port or 0)

    yield start
    for server in servers:
        asyncio.run(server.stop())


PAGES = [
    ("a page's JSON", DEQUEUE, ["Origin: http://evil.example", JSON], 403),
    ("a page's post of nothing", DEQUEUE, ["Origin: http://evil.example"], 403),
    ("a page in a frame without origin", DEQUEUE, ["Origin: null", JSON], 403),
    ("another port of this machine", DEQUEUE, ["Origin: http://localhost:1", JSON], 403),
    ("a form", DEQUEUE, ["Content-Type: text/plain"], 415),
    ("a form that looks like JSON", DEQUEUE, ["Content-Type: text/plain;application/json"], 415),
    ("another form", DEQUEUE, ["Content-Type: application/x-www-form-urlencoded"], 415),
    ("a name bound to this address", DEQUEUE, ["Host: evil.example:4747", JSON], 421),
    ("one that begins like ours", DEQUEUE, ["Host: localhost.evil.example", JSON], 421),
    ("one that ends like an address", DEQUEUE, ["Host: 127.0.0.1.evil.example", JSON], 421),
    ("one with ours as its user", DEQUEUE, ["Host: localhost@evil.example", JSON], 421),
    ("and with a port", DEQUEUE, ["Host: localhost:80@evil.example", JSON], 421),
    ("no name", DEQUEUE, ["Host: ", JSON], 421),
]


@pytest.mark.parametrize(
    ("path", "headers", "status"), [p[1:] for p in PAGES], ids=[p[0] for p in PAGES]
)
def test_pages_claim_no_rollout(serve, store, path, headers, status) -> None:
    got, body = serve()(path, *headers, body="")
    said = json.loads(body)
    assert (got, list(said)) == (status, ["detail", "error_type", "error"])
    assert said["error"] == {"message": said["detail"]}
    assert serve(token=TOKEN)(path, *headers)[0] == status  # before the token is looked at
    assert [r.status for r in asyncio.run(store.query_rollouts())] == ["queuing"]


@pytest.mark.parametrize(
    "headers",
    [["Origin: http://evil.example", JSON], ["Host: evil.example", JSON]],
    ids=["origin", "host"],
)
def test_attack_works_where_it_is_let(serve, headers, monkeypatch) -> None:
    monkeypatch.setenv("AGL_ALLOWED_HOSTS", "*")
    status, body = serve(cors_allow_origins="*")(DEQUEUE, *headers)
    assert status == 200
    assert "the answer is 42" in body


def test_named_sites_and_hosts_may_call(serve, monkeypatch) -> None:
    monkeypatch.setenv("AGL_ALLOWED_HOSTS", "store.example, other.example:4747,")
    monkeypatch.setattr(socket, "gethostname", lambda: "Box")
    send = serve(cors_allow_origins="https://board.example")
    hosts = "store.example other.example:4747 other.example.:9 box:4747 localhost:9 localhost."
    for headers, status in (
        *(([f"Host: {host}"], 200) for host in hosts.split()),
        (["Host: Store.Example:443", "Origin: https://store.example"], 403),  # another port
        (["Host: [::1]:9", "Origin: http://[::1]:9"], 200),
        (["Host: 127.0.0.2", "Origin: https://board.example"], 200),
    ):
        assert send("/v1/agl/rollouts", *headers, verb="GET", body="")[0] == status, headers


def test_a_server_goes_by_the_name_that_it_was_bound_by() -> None:
    thread = ServerThread(EchoLLM(), "gateway", sock=bind("127.0.0.1", 0))
    send = Sender(thread.start())
    for host, status in (("Gateway:80", 200), ("gateway.evil.example", 421)):
        assert send("/v1/models", f"Host: {host}", verb="GET", body="")[0] == status
    thread.stop()


def test_servers_of_models_are_held_like_the_store() -> None:
    with EchoLLM() as model:
        send = Sender(urlsplit(model.url).port or 0)
        said = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]})
        path = "/v1/chat/completions"
        assert send(path, JSON, body=said)[0] == 200
        for header, status in (("Content-Type: text/plain", 415), ("Origin: http://e.x", 403)):
            assert send(path, header, body=said)[0] == status
        assert len(model.requests) == 1


def test_who_still_sends_is_told_why(serve: Callable[..., Sender]) -> None:
    send = serve()
    for header, status in (("Content-Type: text/plain", 415), ("Origin: http://e.x", 403)):
        assert send(DEQUEUE, header, body=" " * 2**24)[0] == status


@pytest.fixture
def bare() -> Generator[int]:
    """The port of a server whose application must not be reached."""

    async def app(scope, receive, send) -> None:
        if scope["type"] == "http":
            raise AssertionError("a refused request reached the application")
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    thread = ServerThread(app, drain_seconds=0.5)
    yield thread.start()
    thread.stop()


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"a: b\r\n" * 101 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\na: " + b"b" * guard.MAX_HEAD_BYTES + b"\r\n\r\n",
        b"GET /" + b"a" * guard.MAX_HEAD_BYTES + b" HTTP/1.1\r\nHost: localhost\r\na: b\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * guard.MAX_HEAD_BYTES,
        b"GET / HTTP/1.1\r\na: " + b"b" * 2 * guard.MAX_HEAD_BYTES,
    ],
    ids=["many", "long", "long address", "endless many", "endless one"],
)
def test_heads_have_an_end(bare: int, head: bytes) -> None:
    try:
        status, _ = exchange(bare, head)
    except TimeoutError:
        raise
    except OSError:
        return  # closed while we were still sending
    assert status == 431


def test_silence_has_an_end(bare: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.2)
    for begun in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\n"):
        with connect(bare) as sock:
            sock.sendall(begun)
            assert b" 408 " in first_line(sock)
            assert sock.recv(1) == b""


def test_a_body_that_stops_ends_its_connection(serve: Callable[..., Sender], monkeypatch) -> None:
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", serve().port), timeout=30) as sock:
        sock.sendall(b"POST /v1/agl/rollouts HTTP/1.1\r\nHost: localhost\r\n")
        sock.sendall(b"Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{")
        assert b" 408 " in first_line(sock)
        assert sock.recv(1) == b""


@pytest.mark.parametrize("more", [b"", b"GET / HT"])
def test_a_reader_that_stops_ends_its_connection(more: bytes, monkeypatch) -> None:
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.4)
    monkeypatch.setattr(guard, "HEAD_SECONDS", 0.2)
    is_over = threading.Event()

    async def app(scope, receive, send) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(2):
                await send({"type": "http.response.body", "body": bytes(2**24), "more_body": True})
            is_over.set()

    thread = ServerThread(app)
    with socket.create_connection(("127.0.0.1", thread.start()), timeout=30) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + more)
        assert is_over.wait(30)
    thread.stop()


def test_bodies_together_have_a_limit(serve: Callable[..., Sender], monkeypatch) -> None:
    send = serve()
    held = 2000
    monkeypatch.setattr(guard, "MAX_HELD_BYTES", held)
    head = f"POST {DEQUEUE} HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nContent-Length: {held}\r\n\r\n"
    with connect(send.port) as first:
        first.sendall(head.encode() + b" " * (held - 1))
        with connect(send.port) as second:
            second.sendall(head.encode() + b" " * (held - 1))
            assert b" 503 " in second.recv(65536).split(b"\r\n")[0]
    assert send(DEQUEUE, JSON)[0] == 200  # what ended holds nothing


def test_connections_have_a_limit(bare: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MAX_CONNECTIONS", 2)
    idle = [connect(bare) for _ in range(2)]
    for each in idle:  # they are known when they have sent something
        each.sendall(b"GET / HTTP/1.1\r\n")
    with connect(bare) as third:
        assert b" 503 " in third.recv(65536).split(b"\r\n")[0]
    for each in idle:
        each.close()


@pytest.mark.skipif(sys.platform == "win32", reason="has no limit of open files")
def test_connections_leave_files_for_the_store() -> None:
    files = 120  # of which a server needs some before anybody connects
    run = f"import resource as r; r.setrlimit(r.RLIMIT_NOFILE, ({files}, {files})); "
    run += "from agl.cli import main; main()"
    options = ["store", "--port", "0", "--backend", "memory", "--open"]
    with subprocess.Popen([sys.executable, "-c", run, *options], stderr=-1, text=True) as server:
        assert server.stderr is not None
        line = next(line for line in server.stderr if "agl store:" in line)
        address = ("127.0.0.1", urlsplit(line.split()[2]).port)
        idle = [socket.create_connection(address, timeout=30) for _ in range(files // 2)]
        for each in idle:
            each.sendall(b"GET /health HTTP/1.1\r\n")
        with socket.create_connection(address, timeout=30) as another:
            assert b" 503 " in another.recv(65536).split(b"\r\n")[0]
        idle[0].sendall(b"Host: localhost\r\n\r\n")
        assert b" 200 " in idle[0].recv(65536).split(b"\r\n")[0]
        for each in idle:
            each.close()
        server.terminate()
        server.communicate(timeout=30)


def test_requests_that_wait_on_one_connection_have_a_limit(serve: Callable[..., Sender]) -> None:
    send = serve()
    held = json.dumps({"wait_seconds": 30})
    head = f"POST {DEQUEUE} HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\n"
    claim = f"{head}Content-Length: {len(held)}\r\n\r\n{held}".encode()
    assert send(DEQUEUE, JSON)[0] == 200  # nothing is queued any more
    ask = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connect(send.port) as sock:
        sock.sendall(claim + ask * (guard.MAX_PIPELINED + 1))
        assert sock.recv(65536) == b""
    with connect(send.port) as sock:
        sock.sendall(
            ask * guard.MAX_PIPELINED + ask.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        )
        answers = b"".join(iter(lambda: sock.recv(65536), b""))
        assert answers.count(b"HTTP/1.1 200 ") == guard.MAX_PIPELINED + 1


@pytest.mark.parametrize(
    "twice",
    [
        ["Host: localhost", "Host: evil.example"],
        ["Host: evil.example", "Host: localhost"],
        ["Origin: http://evil.example", "Origin: http://localhost"],
        ["Authorization: Bearer x", BEARER],
        ["Content-Type: text/plain", JSON],
        ["Content-Encoding: gzip", "Content-Encoding: identity"],
        ["Idempotency-Key: a", "Idempotency-Key: b"],
    ],
    ids=lambda twice: twice[0],
)
def test_a_header_that_says_two_things_is_refused(serve, twice) -> None:
    status, body = serve(token=TOKEN)(DEQUEUE, *twice)
    assert status == 400
    assert "more than one header" in json.loads(body)["detail"]


@pytest.mark.parametrize(
    ("header", "status", "words"),
    [
        ("Origin: https://board.example", 403, "cors_allow_origins"),
        ("Host: evil.example", 421, "AGL_ALLOWED_HOSTS"),
    ],
)
def test_a_page_that_may_not_call_is_told_who_can_let_it(serve, header, status, words) -> None:
    got, body = serve()("/v1/agl/rollouts", header, verb="GET", body="")
    assert got == status
    assert words in json.loads(body)["detail"]
    assert "42" not in body  # nor does it read anything


def test_what_nobody_reads_holds_nothing(serve: Callable[..., Sender], monkeypatch) -> None:
    send = serve(token=TOKEN)
    monkeypatch.setattr(guard, "MAX_HELD_BYTES", 2000)
    head = f"POST {DEQUEUE} HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nContent-Length: 5000\r\n\r\n"
    with connect(send.port) as stranger:
        stranger.sendall(head.encode())
        assert b" 401 " in stranger.recv(65536)
        stranger.sendall(b" " * 1990)
        assert send(DEQUEUE, JSON, BEARER, body=" " * 100 + "{}")[0] == 200
        stranger.sendall(b" " * 1990)
        assert send(DEQUEUE, JSON, BEARER, body=" " * 100 + "{}")[0] == 200


def test_idle_connections_keep_no_body(store: agl.LightningStore) -> None:
    thread = ServerThread(store_app(StoreRoutes(store)))
    head = f"POST {DEQUEUE} HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nContent-Length: 90000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", thread.start()), timeout=30) as sock:
        sock.sendall(head.encode() + b" " * 89_998 + b"{}")
        assert b" 200 " in sock.recv(65536)
        (protocol,) = thread._server.server_state.connections  # pyright: ignore
        assert protocol.cycle.parts == []  # pyright: ignore
    thread.stop()


def test_trailers_have_an_end(serve: Callable[..., Sender]) -> None:
    head = f"POST {DEQUEUE} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    port = serve(token=TOKEN).port
    for trailers in (b"a: b\r\n" * 2**16, b"a: " + b"b" * 2**20):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
            try:
                sock.sendall(head.encode() + trailers)
                while sock.recv(65536):
                    pass
            except (ConnectionResetError, BrokenPipeError):
                pass  # closed while we were still sending


def test_an_application_that_reads_late_is_no_silence(monkeypatch) -> None:
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.1)

    async def app(scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            return
        await asyncio.sleep(1.0)  # as a gateway whose store is away
        size, more = 0, True
        while more:
            message = await receive()
            size, more = size + len(message["body"]), message["more_body"]
        await send_whole(send, 200, b"%d" % size, b"text/plain")

    thread = ServerThread(app)
    assert Sender(thread.start())("/", JSON, body=" " * 2**22) == (200, str(2**22))
    thread.stop()
