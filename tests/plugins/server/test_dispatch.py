"""Any request to the routes of the store gets an answer of the form that they share."""

import asyncio
import contextlib
import json
import math
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import agl
from agl.errors import InvalidTransitionError, UnknownRecordError
from agl.store.base import LightningStore, Turn
from agl.store.packed_span import PackedSpan, unpacked
from agl.types import Attempt, AttemptedRollout, PaginatedResult, ResourcesUpdate, Span, Worker
from agl_http import wire
from agl_server.app import store_app
from agl_server.dispatch import Route
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


SPAN = {
    **{"rollout_id": "ro-1", "attempt_id": "at-1", "sequence_id": 0, "trace_id": "1" * 32},
    **{"span_id": "a" * 16, "parent_id": None, "name": "n"},
    "status": {"status_code": "OK", "description": None},
    **{"attributes": {"n": 1, "l": ["a"]}, "events": [], "links": [], "start_time": 1.0},
    **{"end_time": None, "context": None, "parent": None},
    "resource": {"attributes": {}, "schema_url": ""},
}
ERROR = {"boundary": "agent", "type": "E", "message": "broke"}
LLM = {"resource_type": "llm", "endpoint": "http://m/v1", "model": "m"}
GOOD: dict[str, Any] = {
    **{"rollout_id": "ro-1", "attempt_id": "at-1", "worker_id": "w", "key": "k", "limit": 1},
    **{"status": "failed", "mode": "val", "metadata": {"a": 1}, "input": [1], "offset": 0},
    **{"config": {"max_attempts": 2}, "resources_id": "rs/1", "error": ERROR, "timeout": 0.5},
    **{"last_heartbeat_time": 5, "heartbeat_stats": {"gpu": 1}, "wait_seconds": 0.5, "step": 1},
    **{"status_in": ["running"], "rollout_id_in": ["ro-1"], "sort_by": "name", "lost": False},
    **{"sort_order": "desc", "filter_logic": "or", "rollouts": [{"input": 1}], "spans": [SPAN]},
    **{"documents": [{"kind": "note", "key": "a", "body": 1}], "keys": ["a"], "kind": "note"},
    **{"key_in": ["a"], "key_prefix": "a", "after": "a"},
    **{"rollout_ids": ["ro-1"], "claim": {"limit": 1}},
    "only_count": True,
    "finish": {"rollout_id": "ro-1", "attempt_id": "at-1", "status": "failed", "error": ERROR},
}
ODD: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.sampled_from([math.nan, {"a": [math.inf]}]),  # that is not JSON
    st.text(max_size=3),
    st.sampled_from(["1", "odd", "null", "latest", 10**400, [], ["odd"], [None], {}, {"a": 1}]),
    st.sampled_from(list(GOOD.values())),
)
# Of larger ones only the first error is said: tests/attack/test_amplification.py.
BYTES = [b"", b" ", b"{", b"null", b"[]", b"{}", b'"x"', b"\xff", b"[" * 50_000, b'{"a":1e999}']
BYTES += [b'{"input":NaN}', b'{"heartbeat_stats":{"a":NaN}}', b'{"rollouts":[{"input":1e999}]}']
KINDS = ["application/json", "application/json; charset=utf-8", "Application/JSON", "text/plain"]
KINDS += ["application/jsonx", "application/vnd.x+json", "", "application/x-protobuf"]
STEPS = ["ro-1", "a/b", "", "..", "latest", "search", "attempts", "é ", "{x}"]
ROUTES = StoreRoutes(Canned("")).all()


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """One request to one of the routes, good or nearly."""
    route = draw(st.sampled_from(ROUTES))
    path = route.path
    for name in ("rollout_id", "attempt_id", "resources_id", "worker_id"):
        step = draw(st.sampled_from(STEPS)) if f"{{{name}" in path else ""
        path = path.replace(f"{{{name}:path}}", step).replace(f"{{{name}}}", step)
    verb = draw(st.sampled_from([route.verb] * 8 + ["GET", "POST", "PUT", "HEAD"]))
    kind = draw(st.sampled_from(KINDS[:1] * 8 + KINDS))
    query = draw(st.sampled_from(["", "", "limit=1", "limit=x&nope=1", "status_in=failed"]))
    if route.verb == "GET":
        return {"verb": verb, "path": path, "kind": "", "query": query, "body": b""}
    body = draw(st.one_of(bodies(route), bodies(route), st.sampled_from(BYTES)))
    return {"verb": verb, "path": path, "kind": kind, "query": query, "body": body}


@st.composite
def bodies(draw: st.DrawFn, route: Route) -> bytes:
    """JSON that is the route's, with at most a few things wrong."""
    body: Any = None
    if route.path.endswith("/spans"):
        body = dict(SPAN)
    elif route.path.endswith("/batch"):
        body = [dict(SPAN), dict(SPAN) | {"span_id": "b" * 16}]
    elif "/resources" in route.path:
        body = {"a": dict(LLM)}
    elif route.body is not None:
        fields = list(route.body.model_fields)
        chosen = draw(st.lists(st.sampled_from(fields), unique=True))
        needed = [name for name, one in route.body.model_fields.items() if one.is_required()]
        body = {name: GOOD.get(name, "text") for name in {*chosen, *needed}}
    target = body[0] if isinstance(body, list) else body
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        if target:
            name = draw(st.sampled_from([*target, "nope"]))
            target[name] = draw(ODD)
    return json.dumps(body).encode()


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

    limits = settings(max_examples=300, derandomize=True, database=None)
    limits(given(requests())(check))()
    plain = {"verb": "POST", "kind": "application/json", "query": "", "body": b"{}"}
    for route in ROUTES:
        path = re.sub(r"\{.*?\}", "x", route.path)
        for name, values in (("body", BYTES), ("kind", KINDS), ("verb", ["GET", "PUT", "HEAD"])):
            for value in values:
                check({**plain, "path": path, name: value})
    known = {200, 201, 400, 404, 405, 409, 415, 422, 503}
    assert statuses.keys() <= known, statuses
    assert sum(statuses[status] for status in known - {405, 415, 422}) > 150
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
