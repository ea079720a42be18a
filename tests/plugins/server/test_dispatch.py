"""Any request to the routes of the store gets an answer of the form that they share."""

import asyncio
import contextlib
import json
import re
from collections import Counter
from typing import Any

import pytest

import agl
from agl.errors import InvalidTransitionError, UnknownRecordError
from agl.store.base import LightningStore, Turn
from agl.store.packed_span import PackedSpan, unpacked
from agl.types import Attempt, AttemptedRollout, PaginatedResult, ResourcesUpdate, Span, Worker
from agl_http import wire
from agl_server.app import store_app
from agl_server.routes import StoreRoutes

ATTEMPT = Attempt(rollout_id="ro-1", attempt_id="at-1", sequence_id=1, start_time=1.0)
ROLLOUT = AttemptedRollout(rollout_id="ro-1", input={"é": 1.5}, start_time=1.0, attempt=ATTEMPT)
RESOURCES = ResourcesUpdate(
    resources_id="rs/1", create_time=1.0, update_time=1.0, version=1, resources={}
)
WORKER = Worker(worker_id="w", status="busy")


class Canned(LightningStore):
    """Notes what it is asked; answers one record of the right kind, none, or an error."""

    def __init__(self, fate: str) -> None:
        self.fate = fate
        self.asked: list[Any] = []

    async def call(self, operation: Any, arguments: dict[str, Any]) -> Any:
        shown = {name: _plain(value) for name, value in arguments.items()}
        self.asked.append((operation, shown))
        if self.fate == "refuses":
            raise InvalidTransitionError("no")
        if self.fate == "knows nothing":
            raise UnknownRecordError("no")
        name = operation
        if name == "turn":
            return Turn(arguments.get("spans", ()), ATTEMPT, [ROLLOUT])
        if name in ANSWERS:
            return ANSWERS[name]
        record = next(
            (one for word, one in RECORDS.items() if word in name.removesuffix("_by_id")), ROLLOUT
        )
        if name.startswith("query_"):
            return PaginatedResult[Any](items=[record], limit=-1, offset=0, total=1)
        return [record] if "many" in name or name.startswith("wait") else record


ANSWERS = {
    **{"get_many_span_sequence_ids": [7], "put_documents": None},
    **{"delete_documents": 1, "delete_rollouts": {"rollouts": 1}},
}
RECORDS: dict[str, Any] = {
    "start_attempt": ROLLOUT,
    "attempt": ATTEMPT,
    "resources": RESOURCES,
    "worker": WORKER,
    "documents": agl.Document(kind="note", key="a", body={"x": 1}),
    "spans": Span.from_attributes(attributes={"a": 1}, span_id="a" * 16, start_time=1.0),
}


def _plain(value: Any) -> Any:
    if isinstance(value, PackedSpan):
        [value] = unpacked([value])
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value.model_dump() if hasattr(value, "model_dump") else value


# Of larger ones only the first error is said: tests/attack/test_amplification.py.
BYTES = [b"", b" ", b"{", b"null", b"[]", b"{}", b'"x"', b"\xff", b"[" * 50_000, b'{"a":1e999}']
BYTES += [b'{"input":NaN}', b'{"heartbeat_stats":{"a":NaN}}', b'{"rollouts":[{"input":1e999}]}']
KINDS = ["application/json", "application/json; charset=utf-8", "Application/JSON", "text/plain"]
KINDS += ["application/jsonx", "application/vnd.x+json", "", "application/x-protobuf"]
ROUTES = StoreRoutes(Canned("")).all()


async def ask(app: Any, request: dict[str, Any]) -> list[Any]:
    """Everything that an application sends."""
    sent: list[Any] = []
    pending = [{"type": "http.request", "body": request["body"], "more_body": False}]

    async def receive() -> Any:
        if pending:
            return pending.pop()
        return await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-length", b"%d" % len(request["body"]))]
    if request["kind"]:
        headers.append((b"content-type", request["kind"].encode()))
    scope = {
        **{"type": "http", "method": request["verb"], "path": request["path"], "root_path": ""},
        **{"raw_path": b"", "query_string": request["query"].encode(), "headers": headers},
        **{"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 1), "scheme": "http"},
        **{"http_version": "1.1", "asgi": {"version": "3.0"}, "state": {}},
    }
    await app(scope, receive, send)
    begin, end = sent
    # A span that is answered is as it came, to a space.
    headers = [one for one in begin["headers"] if one[0] != b"content-length"]
    body = end["body"]
    with contextlib.suppress(ValueError):
        body = json.loads(body)
    return [begin["status"], headers, body]


@pytest.mark.parametrize("fate", ["answers", "refuses", "knows nothing"])
def test_a_request_is_carried_out_or_refused_before_the_store_is_asked(fate):
    store = Canned(fate)
    routes = StoreRoutes(store)
    app = store_app(routes)
    statuses: Counter[int] = Counter()

    def check(request: dict[str, Any]) -> None:
        store.asked.clear()
        status, headers, body = asyncio.run(ask(app, request))
        statuses[status] += 1
        if request["path"] == wire.TRACES and status != 405:
            return  # OpenTelemetry's own form
        assert dict(headers)[b"content-type"] == b"application/json", request
        if status in (405, 415, 422):
            assert not store.asked, request
        if status >= 400 and not (status == 404 and not store.asked):  # no route's path
            assert body.keys() == {"detail", "error_type"}, request
            assert body["detail"], request
        if status == 405:
            assert dict(headers)[b"allow"], request

    plain = {"verb": "POST", "kind": "application/json", "query": "", "body": b"{}"}
    for route in ROUTES:
        path = re.sub(r"\{.*?\}", "x", route.path)
        for name, values in (("body", BYTES), ("kind", KINDS), ("verb", ["GET", "PUT", "HEAD"])):
            for value in values:
                check({**plain, "path": path, name: value})
    assert statuses.keys() <= {200, 201, 400, 404, 405, 409, 415, 422, 503}, statuses
    assert statuses.keys() > {405, 415, 422}, statuses
    counts = [line for line in routes.requests.text({}).splitlines() if "requests_total{" in line]
    assert counts
    assert not [line for line in counts if "x/" in line]  # by route, not by path


def test_a_query_is_read_as_the_body_that_says_the_same():
    store = Canned("answers")
    app = store_app(StoreRoutes(store))
    given = {"verb": "GET", "kind": "", "body": b"", "path": "/v1/agl/rollouts"}
    query = "status_in=failed&status_in=running&limit=3&rollout_id_contains=%C3%A9"
    said = {"status_in": ["failed", "running"], "limit": 3, "rollout_id_contains": "é"}
    [status, *_] = asyncio.run(ask(app, given | {"query": query}))
    by_query = list(store.asked)
    store.asked.clear()
    body = given | {"verb": "POST", "path": "/v1/agl/rollouts/search", "query": ""}
    body |= {"kind": "application/json", "body": json.dumps(said).encode()}
    assert asyncio.run(ask(app, body))[0] == status == 200
    assert by_query == store.asked
    wrong = asyncio.run(ask(app, given | {"query": "limit=x&nope=1"}))
    assert wrong[0] == 422
    assert [part["loc"] for part in wrong[2]["detail"]] == [["query", "limit"], ["query", "nope"]]
