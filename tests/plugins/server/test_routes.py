"""The routes of spans and of the turn: what they take, what they answer, and what they refuse."""

import asyncio
import gzip
import json
import math

import aiohttp
import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError
from tests.stores import served

from agl.errors import InvalidRecordError
from agl.store.base import AttemptEnd
from agl.store.memory import InMemoryLightningStore
from agl.store.packed_span import unpacked
from agl.types import AttemptedRollout, EnqueueRolloutRequest, Event, Link, Span, SpanContext
from agl_http import wire
from agl_http.layers import IDEMPOTENCY_KEY, RememberedPosts
from agl_server import packed_json
from agl_sqlite import SqliteLightningStore

JSON = {"Content-Type": "application/json"}


@pytest.fixture(params=["memory", "sqlite"])
async def store(request, tmp_path):
    is_file = request.param == "sqlite"
    store = SqliteLightningStore(tmp_path / "agl.db") if is_file else InMemoryLightningStore()
    yield store
    await store.close()


@pytest.fixture
async def http(server):
    async with aiohttp.ClientSession(server.endpoint) as session:
        yield session


async def post(http, path, body, **headers):
    async with http.post(path, data=body, headers=JSON | headers) as response:
        return response.status, await response.json(content_type=None)


def ids_of(rollout: AttemptedRollout) -> dict[str, str]:
    return {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}


def make_span(rollout: AttemptedRollout, **attributes: object) -> Span:
    return Span.from_attributes(attributes=attributes, **ids_of(rollout))


def end_of(rollout: AttemptedRollout) -> AttemptEnd:
    return AttemptEnd(**ids_of(rollout), status="succeeded")


NAMES = st.text(max_size=5)
SCALARS = st.one_of(st.text(max_size=5), st.booleans(), st.integers(), st.floats(allow_nan=False))
ATTRIBUTES = st.dictionaries(NAMES, st.one_of(SCALARS, st.lists(SCALARS, max_size=3), st.none()))


@given(attributes=ATTRIBUTES, extra=st.booleans(), number=st.integers(-2, 3))
def test_what_is_packed_is_what_pydantic_takes(attributes, extra, number):
    fields = Span.from_attributes(attributes={}).model_dump(mode="json")
    fields |= {"attributes": attributes, "sequence_id": number} | ({"x": 1} if extra else {})
    fields["events"] = [{"name": "e", "attributes": attributes, "timestamp": 1}]
    body = json.dumps(fields).encode()
    try:
        packed = packed_json.pack(body)
    except ValueError:
        return  # pydantic decides
    span = Span.model_validate(wire.decode(body))
    assert unpacked([packed]) == [span]
    for name in ("rollout_id", "attempt_id", "span_id", "trace_id", "parent_id", "name"):
        assert getattr(packed, name) == getattr(span, name)
    assert (packed.start_time, packed.end_time) == (span.start_time, span.end_time)


@pytest.mark.parametrize(
    "change",
    [
        {"attributes": {"a": [1, "b"]}},
        {"attributes": {"a": {"b": 1}}},
        {"attributes": {"a": None}},
        {"sequence_id": "three"},
        {"events": [{"name": "e"}]},
        {"status": {"status_code": "FINE"}},
        {"span_id": None},
    ],
)
def test_what_pydantic_refuses_is_not_packed(change):
    fields = Span.from_attributes(attributes={}).model_dump(mode="json") | change
    with pytest.raises(ValidationError):
        Span.model_validate(fields)
    with pytest.raises(ValueError):  # noqa: PT011
        packed_json.pack(json.dumps(fields).encode())


async def test_spans_come_back_as_they_were_sent(client, http, store):
    rollout = await client.start_rollout(1)
    of = {"trace_id": "1" * 32, "span_id": "2" * 16, "trace_state": {"k": "v"}}
    context = SpanContext(**of, is_remote=True)
    more = {
        "events": [Event(name="e", attributes={"x": [1.5]}, timestamp=2.0)],
        "links": [Link(context=context, attributes={"y": False})],
        **{"parent": context, "parent_id": context.span_id},
    }
    span = make_span(rollout, s="ü\u0000", i=2**70, f=1.5, b=True, l=["a", "b"])
    span = span.model_copy(update=more)
    status, answer = await post(http, "/v1/agl/spans", span.model_dump_json().encode())
    assert status == 201
    stored = span.model_copy(update={"sequence_id": 1})
    assert Span.model_validate(answer) == stored
    assert list(await store.query_spans(rollout.rollout_id)) == [stored]
    # With keys of its own and numbers as text it is pydantic's to read; the answer is the same.
    odd = json.loads(make_span(rollout).model_dump_json()) | {"own": [1], "sequence_id": "7"}
    status, answer = await post(http, "/v1/agl/spans", json.dumps(odd).encode())
    assert (status, answer["sequence_id"], answer["own"]) == (201, 7, [1])
    assert [each.sequence_id for each in await store.query_spans(rollout.rollout_id)] == [1, 7]


class OnlyOnes(InMemoryLightningStore):
    """A store that reads spans in a way of its own."""

    async def query_spans(self, *ids, **filters):
        found = await super().query_spans(*ids, **filters)
        items = [span for span in found if span.name == "one"]
        return found.model_copy(update={"items": items, "total": len(items)})


async def test_a_store_that_reads_spans_in_its_own_way_is_asked_for_them():
    store = OnlyOnes()
    rollout = await store.start_rollout("task")
    spans = [make_span(rollout).changed(name=name) for name in ("one", "two")]
    await store.add_many_spans(spans)
    path = f"/v1/agl/spans?rollout_id={rollout.rollout_id}"
    async with (
        served(store, open=True) as (server, _),
        aiohttp.ClientSession(server.endpoint) as http,
        http.get(path) as response,
    ):
        page = await response.json()
    assert [one["name"] for one in page["items"]] == ["one"], page


async def test_a_turn_waits_for_work(client, store):
    rollout = await client.start_rollout(1)
    about = {"finish": end_of(rollout), "worker_id": "w", "wait_seconds": 5}
    waiting = asyncio.create_task(client.turn([make_span(rollout)], **about))
    ended = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=5)
    assert [each.status for each in ended] == ["succeeded"]
    assert not waiting.done()
    await store.enqueue_rollout(2)
    assert [each.input for each in (await waiting).claimed] == [2]


WRONG_TURNS = b'"finish":{}', b'"finnish":null', b'"claim":{"limit":"x"}'


async def test_refusals_are_those_of_the_described_routes(http, store):
    rollout = await store.start_rollout(1)
    span = make_span(rollout, a=1).model_dump_json().encode()
    attempt = f"rollouts/{rollout.rollout_id}/attempts/{rollout.attempt.attempt_id}"
    unknown = span.replace(rollout.attempt.attempt_id.encode(), b"at-none")

    def with_attribute(value: bytes) -> bytes:
        return span.replace(b'"attributes":{', b'"attributes":{"x":%s,' % value, 1)

    huge = span.replace(b'"sequence_id":0', b'"sequence_id":%d' % 10**40)
    nul = span.replace(b'"span_id":"', rb'"span_id":"\u0000', 1)
    not_valid = {
        "spans": [b"[]", b"{", b"", b"\xff\xfe", span.replace(b'"OK"', b'"FINE"'), span + b"\x00"],
        "spans/batch": [b"[" * 100_000, b"[%s,{}]" % span],
        "turn": [b'{"spans":[%s],%s}' % (span, one) for one in WRONG_TURNS],
        "queues/rollouts/enqueue": [b'{"rollouts":[{}]}'],
        "queues/rollouts/dequeue": [b'{"limits":1}'],
        "waits/rollouts": [b'{"rollout_ids":"x"}'],
    }
    not_valid["spans"] += [with_attribute(b"NaN"), with_attribute(b"1e999")]
    cases = [
        *((path, body, 422, "ValidationError") for path in not_valid for body in not_valid[path]),
        ("spans", huge, 400, "InvalidRecordError"),
        ("spans", nul, 400, "InvalidRecordError"),
        ("turn", b'{"spans":[%s]}' % nul, 400, "InvalidRecordError"),
        ("spans", unknown, 404, "UnknownRecordError"),
        ("spans/batch", b"[%s,%s]" % (span, unknown), 404, "UnknownRecordError"),
        (attempt, b'{"status":"done"}', 409, "InvalidTransitionError"),
        (attempt, b'{"status":null}', 400, "InvalidQueryError"),
        (attempt + "x", b'{"status":"failed"}', 404, "UnknownRecordError"),
    ]
    for path, body, status, error_type in cases:
        got, answer = await post(http, f"/v1/agl/{path}", body)
        assert got == status, (path, body[:200], answer)
        assert answer["detail"]
        assert answer["error_type"] == error_type
    statistics = await store.statistics()
    assert (statistics["total_spans"], statistics["total_rollouts"]) == (0, 1)
    assert (await store.get_latest_attempt(rollout.rollout_id)).status == "preparing"


@pytest.mark.parametrize("value", [math.nan, math.inf, [1.0, -math.inf]])
async def test_numbers_that_are_not_finite_are_refused_by_name(store, value):
    rollout = await store.start_rollout(1)
    good, bad = make_span(rollout), make_span(rollout, score=value)
    event = Event(name="e", attributes={"loss": value})
    deep = make_span(rollout).model_copy(update={"events": [event]})
    late = make_span(rollout).model_copy(update={"end_time": math.nan})
    for span, word in ((bad, "score"), (deep, "loss"), (late, "end_time")):
        with pytest.raises(InvalidRecordError, match=rf"{span.span_id}.*{word}"):
            await store.add_many_spans([good, span])
        with pytest.raises(ValueError, match=word):
            await store.turn([good, span], finish=end_of(rollout))
    assert (await store.statistics())["total_spans"] == 0
    assert (await store.get_latest_attempt(rollout.rollout_id)).status == "preparing"


async def test_bodies_may_be_gzip_and_must_not_be_bombs(http, store):
    rollout = await store.start_rollout(1)
    span = make_span(rollout).model_dump_json().encode()
    packed = {"Content-Encoding": "gzip"}
    assert (await post(http, "/v1/agl/spans", gzip.compress(span), **packed))[0] == 201
    bomb = gzip.compress(b" " * 50_000_000)
    for path in ("/v1/agl/spans/batch", "/v1/agl/turn", "/v1/traces"):
        status, answer = await post(http, path, bomb, **packed)
        assert (status, answer["error_type"]) == (413, "BodyTooLarge")
    assert (await post(http, "/v1/agl/turn", span, **packed))[0] == 400
    assert (await store.statistics())["total_spans"] == 1


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_a_long_trace_is_answered_whole(store, http):
    rollout = await store.start_rollout(1)
    ids = {"rollout_id": rollout.rollout_id}
    for _ in range(4):
        await store.add_many_spans([make_span(rollout, text="x" * 10_000) for _ in range(100)])
    expected = json.loads((await store.query_spans(**ids)).model_dump_json())
    body = json.dumps(ids).encode()
    for _ in range(2):  # on one connection, which stays
        async with http.post("/v1/agl/spans/search", data=body, headers=JSON) as response:
            assert await response.json() == expected
            assert int(response.headers["content-length"]) > 4_000_000
            assert "connection" not in response.headers


@pytest.mark.parametrize("count", [0, 1, 120])
async def test_a_page_of_many_records_is_whole(store, client, count):
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(count)])
    page = await client.query_rollouts()
    assert ([one.input for one in page], page.total, page.limit) == ([*range(count)], count, -1)


async def test_an_answer_in_pieces_is_not_remembered():
    asked = []

    async def app(scope, receive, send):
        asked.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/long":
            await send({"type": "http.response.body", "body": b"1", "more_body": True})
        await send({"type": "http.response.body", "body": b"2"})

    remembered = RememberedPosts(app)

    async def ask(path):
        async def receive():
            return {"type": "http.request", "body": b"{}", "more_body": False}

        async def send(message):
            pass

        headers = [(IDEMPOTENCY_KEY.lower().encode(), b"key")]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
        await remembered(scope, receive, send)

    for path in ("/short", "/long", "/long", "/short"):
        await ask(path)
    assert asked == ["/short", "/long", "/long"]
