"""What goes past uvicorn's cycle and the outer layers is answered as if it did not."""

import asyncio
import gzip
import json

import aiohttp
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route
from tests.stores import served

import agl

ENQUEUE, BODY = "/v1/agl/queues/rollouts/enqueue", b'{"rollouts": [{"input": "a task"}]}'


async def split_header(request: Request) -> PlainTextResponse:
    return PlainTextResponse("text", headers={"x-given": "one\r\nx-more: two"})


async def in_pieces(request: Request) -> StreamingResponse:
    return StreamingResponse(iter(["one, ", "two, ", "three"]))


@pytest.fixture
async def server():
    routes = [Route("/split", split_header), Route("/pieces", in_pieces)]
    async with served(open=True, max_body_bytes=1000, extra_routes=routes) as (server, _):
        yield server


def request_of(body: bytes, *headers: str, length: bool = True) -> bytes:
    lines = [f"POST {ENQUEUE} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    lines += [*headers, *([f"Content-Length: {len(body)}"] if length else [])]
    return "\r\n".join([*lines, "\r\n"]).encode() + body


async def answer(reader: asyncio.StreamReader) -> tuple[bytes, set[bytes], bytes]:
    """Status line, names of the headers, body."""
    status, *lines = (await reader.readuntil(b"\r\n\r\n")).strip().split(b"\r\n")
    headers = dict(line.lower().split(b": ", 1) for line in lines)
    return status, {*headers}, await reader.readexactly(int(headers[b"content-length"]))


def lasting(body: bytes) -> list[dict]:
    """The records of an answer without what differs each time."""
    return [one | {"rollout_id": "", "start_time": 0} for one in json.loads(body)]


async def ask(server: agl.LightningStoreServer, *parts: bytes, count: int = 1):
    reader, writer = await asyncio.open_connection("127.0.0.1", server._port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        return [await answer(reader) for _ in range(count)]
    finally:
        writer.close()


async def test_plain_and_other_requests_get_the_same_answers(server):
    ((status, names, body),) = await ask(server, request_of(BODY))
    assert status == b"HTTP/1.1 201 Created"
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    for parts in (
        [request_of(BODY, "X-Other: 1")],
        [request_of(BODY, "Authorization: Bearer none")],
        [request_of(gzip.compress(BODY), "Content-Encoding: gzip")],
        [request_of(chunks, "Transfer-Encoding: chunked", length=False)],
        [request_of(BODY)[:30], request_of(BODY)[30:-5], request_of(BODY)[-5:]],
    ):
        ((other_status, other_names, other_body),) = await ask(server, *parts)
        assert (other_status, other_names) == (status, names), parts
        assert lasting(other_body) == lasting(body), parts


async def test_requests_in_one_packet_are_answered_in_their_order(server):
    many = [b'{"rollouts": [%s]}' % b", ".join([b'{"input": 1}'] * n) for n in range(1, 5)]
    answers = await ask(server, b"".join(map(request_of, many)), count=len(many))
    assert [body.count(b'"input":1') for _, _, body in answers] == [1, 2, 3, 4]


async def test_an_answer_in_pieces_arrives_whole(server):
    async with aiohttp.ClientSession(server.endpoint) as http:
        for _ in range(2):
            async with http.get("/pieces") as response:
                assert await response.text() == "one, two, three"


async def test_a_header_cannot_bring_another(server):
    async with aiohttp.ClientSession(server.endpoint) as http:
        try:
            async with http.get("/split") as response:
                assert response.status == 500
                assert "x-more" not in response.headers
        except aiohttp.ServerDisconnectedError:
            pass
