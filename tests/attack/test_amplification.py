"""What is wrong twenty million times costs a server no more than what is wrong once."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.stores import served

import agl
from agl_http import otlp
from agl_server import dispatch
from agl_server.routes import StoreRoutes
from agl_server.shapes import Shape


@pytest.fixture
async def http() -> AsyncGenerator[aiohttp.ClientSession]:
    async with served() as (server, _), aiohttp.ClientSession(server.endpoint) as session:
        yield session


async def post(http, path, body, kind="application/json") -> tuple[int, Any]:
    headers = {"Content-Type": kind} if kind else {}
    skipped = [] if kind else ["Content-Type"]
    async with http.post(
        f"/v1/agl/{path}", data=body, headers=headers, skip_auto_headers=skipped
    ) as response:
        return response.status, await response.json()


COUNT = 50_000
WRONG = b"[" + b"[]," * COUNT + b"[]]"
FIELDS = b"{" + b",".join(b'"k%d":1' % number for number in range(COUNT)) + b"}"


@pytest.mark.parametrize("kind", ["application/json", "application/x+json", ""])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("spans/batch", WRONG),
        ("turn", b'{"spans":%s}' % WRONG),
        ("queues/rollouts/enqueue", b'{"rollouts":%s}' % WRONG),
        ("queues/rollouts/enqueue", FIELDS),
        ("queues/rollouts/enqueue", b'{"rollouts":[%s]}' % FIELDS),
        ("waits/rollouts", b'{"rollout_ids":%s}' % WRONG),
        ("resources", FIELDS),
        ("spans/batch", b'[{"attributes":{"a":[1,%s,"a"]}}]' % WRONG),
    ],
    ids=["spans", "turn", "rollouts", "fields", "inner fields", "ids", "resources", "a union"],
)
async def test_large_bodies_are_told_their_first_error(http, path, body, kind) -> None:
    status, said = await post(http, path, body, kind)
    assert status == (422 if kind else 415)
    assert len(said["detail"]) < 1000


async def test_small_bodies_are_told_a_hundred_errors(http: aiohttp.ClientSession) -> None:
    status, said = await post(http, "spans/batch", b"[" + b"[]," * 1000 + b"[]]")
    assert (status, len(said["detail"])) == (422, 100)


async def test_what_is_large_and_right_is_taken(http: aiohttp.ClientSession) -> None:
    tasks = [{"input": [[]] * 50, "metadata": {"a": number}} for number in range(1000)]
    body = json.dumps({"rollouts": tasks}).encode()
    assert len(body) > dispatch.LARGE_BODY
    status, queued = await post(http, "queues/rollouts/enqueue", body)
    assert (status, len(queued)) == (201, 1000)


def test_every_body_has_a_shape() -> None:
    bodies = [r.body for r in StoreRoutes(agl.InMemoryLightningStore()).all() if r.verb == "POST"]
    for body in bodies:
        assert body is None or Shape(body).problem("a text")


@pytest.mark.parametrize("what", ["spans", "attributes", "resources"])
def test_otlp_of_very_many_empty_messages_is_refused(what: str) -> None:
    with pytest.raises(ValueError, match="export fewer at once"):
        otlp.packed_of(empty_messages(what, otlp.MAX_ITEMS + 1))
    _, rejected = otlp.packed_of(empty_messages(what, 3))
    assert len(rejected) == {"spans": 3, "attributes": 1, "resources": 0}[what]


def empty_messages(what: str, count: int) -> bytes:
    """An export request with so many of them, of two bytes each."""
    request = ExportTraceServiceRequest()
    if what == "resources":
        for _ in range(count):
            request.resource_spans.add()
        return request.SerializeToString()
    spans = request.resource_spans.add().scope_spans.add().spans
    items = spans if what == "spans" else spans.add().attributes
    for _ in range(count):
        items.add()
    return request.SerializeToString()
