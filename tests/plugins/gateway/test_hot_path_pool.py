"""The gateway's own HTTP client, against servers that do what servers do."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop
from tests.waiting import until

from agl_gateway.errors import BrokenOffError
from agl_gateway.pool import Connection, Pool, _trusting_the_system

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX-Kind: a\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def request_of(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
    return head + await reader.readexactly(length)


@asynccontextmanager
async def serving(
    handler: Handler, secure: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Pool, str]]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=secure)
    pool, scheme = Pool(), "https" if secure else "http"
    try:
        yield pool, f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/chat?a=b%20c"
    finally:
        await pool.close()
        server.close()


def answering(*pieces: bytes, then_close: bool = False) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await request_of(reader)
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0.005)
            if then_close:
                return

    return handle


class Noting:
    """Answers every request, and notes it."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.connections = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            self.seen.append(await request_of(reader))
            writer.write(OK)


async def read(answer: Connection) -> bytes:
    return b"".join([chunk async for chunk in answer.chunks()])


async def body_of(pool: Pool, url: str, asked: bytes = b"{}") -> bytes:
    answer = await pool.post(url, asked, {})
    try:
        return await read(answer)
    finally:
        answer.close()


async def test_requests_and_answers_are_as_sent_and_the_connection_is_kept():
    server = Noting()
    async with serving(server) as (pool, url):
        for _ in range(3):
            answer = await pool.post(url, b'{"a":1}', {"authorization": "Bearer 50%d"})
            assert (answer.status, await read(answer)) == (200, b"ok")
            assert answer.headers["x-kind"] == "a"
            answer.close()
    assert server.connections == 1
    head, body = server.seen[0].split(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/chat?a=b%20c HTTP/1.1\r\nhost: 127.0.0.1:")
    assert b"authorization: Bearer 50%d" in head
    assert body == b'{"a":1}'
    assert len(set(server.seen)) == 1


@pytest.mark.parametrize(
    "handler",
    [
        answering(CHUNKED + b"1\r\no\r", b"\n1\r\nk\r\n0\r\n\r\n"),
        answering(b"HTTP/1.1 200 OK\r\n\r\no", b"k", then_close=True),
        answering(b"HTTP/1.0 200 OK\r\n\r\no", b"k", then_close=True),
        answering(b"HTTP/1.1 100 Continue\r\n\r\n", OK),
        answering(OK.replace(b"X-Kind: a", b"connection: close")),
        answering(*(OK[at : at + 1] for at in range(len(OK)))),
    ],
    ids=["chunked", "until closed", "HTTP 1.0", "100 first", "not kept", "byte by byte"],
)
async def test_answers_in_every_form_are_read_to_their_end(handler):
    async with serving(handler) as (pool, url):
        for _ in range(4):
            assert await body_of(pool, url) == b"ok"


async def test_a_connection_that_the_server_closed_while_idle_is_replaced():
    async with serving(answering(OK, then_close=True)) as (pool, url):
        for pause in (0, 0, 0.02, 0.02):
            assert await body_of(pool, url) == b"ok"
            await asyncio.sleep(pause)


@pytest.mark.parametrize(
    "handler",
    [
        answering(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nok", then_close=True),
        answering(CHUNKED + b"5\r\no", then_close=True),
        answering(b"HTTP/1.1 200 OK\r\ncontent-le", then_close=True),
        answering(b"", then_close=True),
        answering(b"SSH-2.0-OpenSSH\r\n"),
    ],
    ids=["short", "short chunk", "half a head", "nothing", "no HTTP"],
)
async def test_an_answer_that_breaks_off_is_an_error_and_asked_for_once(handler):
    requests = 0

    async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        requests += 1
        await handler(reader, writer)

    async with serving(counted) as (pool, url):
        with pytest.raises(BrokenOffError):
            await body_of(pool, url)
        assert requests == 1
        await until(lambda: not pool.open)


async def test_what_a_server_sends_unasked_is_no_answer_to_the_next_call():
    read, sent = asyncio.Event(), asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(OK)
        await read.wait()
        writer.write(OK.replace(b"ok", b"no"))
        sent.set()
        await reader.read()

    async with serving(handle) as (pool, url):
        for _ in range(3):
            assert await body_of(pool, url) == b"ok"
            read.set()
            await sent.wait()  # it has come, and this event loop has not looked yet
            read.clear()
            sent.clear()


async def test_an_answer_that_is_let_go_closes_its_connection():
    asked, gone = asyncio.Event(), asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        asked.set()
        writer.write(OK[:-1])
        await reader.read()
        gone.set()

    async with serving(handle) as (pool, url):
        answer = await pool.post(url, b"{}", {})
        answer.close()
        await gone.wait()

        gone.clear()
        asked.clear()
        task = asyncio.create_task(body_of(pool, url))
        await asked.wait()
        task.cancel()
        await gone.wait()


async def test_a_stream_that_nobody_reads_makes_the_server_wait():
    sent = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (400 * 2**16))
        for _ in range(400):
            writer.write(b"x" * 2**16)
            await writer.drain()
            sent += 1

    async with serving(handle) as (pool, url):
        answer = await pool.post(url, b"{}", {})
        held = -1
        while held != sent:  # until it makes no progress
            held = sent
            await asyncio.sleep(0.2)
        assert held < 300
        total = 0
        async for chunk in answer.chunks():
            total += len(chunk)
        assert (total, sent) == (400 * 2**16, 400)
        answer.close()


async def test_a_header_with_a_line_break_is_refused():
    with pytest.raises(ValueError, match="line break"):
        await Pool().post("http://127.0.0.1:9/", b"{}", {"authorization": "a\r\nb: c"})


def test_a_call_that_is_given_up_as_it_connects_is_not_waited_for(monkeypatch):
    async def main() -> None:
        async with serving(answering(OK)) as (pool, url):
            call = asyncio.create_task(pool.post(url, b"{}", {}))
            begun = Connection.connection_made

            def give_up(connection: Connection, transport: asyncio.BaseTransport) -> None:
                begun(connection, transport)
                call.cancel()

            monkeypatch.setattr(Connection, "connection_made", give_up)
            with pytest.raises(asyncio.CancelledError):
                await call
            async with asyncio.timeout(60):
                await pool.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as gateways have it
        runner.run(main())


@pytest.fixture
def certified(tmp_path: Path) -> Iterator[tuple[ssl.SSLContext, Path]]:
    """What a server needs for ``https``, and the certificate that its clients must trust."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    about = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "1"]
    made = ["-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", "-x509", *about, *made], check=True, capture_output=True)
    secure = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    secure.load_cert_chain(certificate, key)
    _trusting_the_system.cache_clear()
    yield secure, certificate
    _trusting_the_system.cache_clear()


def test_a_server_with_a_certificate_is_asked_as_others_are(certified, monkeypatch):
    secure, certificate = certified
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    server, large = Noting(), b'{"a":"' + b"x" * 3 * 2**20 + b'"}'

    async def main() -> None:
        async with serving(server, secure) as (pool, url):
            for url_of_it in (url, url, url.replace("//", "//me:s%40cret@")):
                assert await body_of(pool, url_of_it, large) == b"ok"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    assert server.connections == 1
    assert all(request.endswith(large) for request in server.seen)
    key = b"authorization: Basic bWU6c0BjcmV0\r\n"
    assert [key in one for one in server.seen] == [False, False, True]


async def test_a_certificate_that_nobody_trusts_is_an_os_error(certified):
    async with serving(answering(OK), certified[0]) as (pool, url):
        with pytest.raises(OSError, match="certificate verify failed"):
            await pool.post(url, b"{}", {})
