"""OpenTelemetry's wire format, by its own exporter and by hand."""

import gzip

import aiohttp
import pytest
from hypothesis import given, strategies as st
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span as ProtoSpan
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.trace import Status, StatusCode
from tests.otlp_requests import request_of
from tests.stores import served

from agl.errors import DamagedRecordError
from agl.store.packed_span import unpacked
from agl.types import AttemptedRollout, Event, Link, OtelResource, Span, SpanContext, TraceStatus
from agl_http import otlp
from agl_server.server import LightningStoreServer

HEADERS = {"Content-Type": "application/x-protobuf"}
OWNER = {"agentlightning.rollout_id": "r", "agentlightning.attempt_id": "a"}


@pytest.fixture
async def server():
    async with served(open=True, max_body_bytes=1_000_000) as (server, _):
        yield server


@pytest.fixture
async def attempt(server):
    return await server.start_rollout("task")


def ids(attempt: AttemptedRollout) -> dict[str, str]:
    known = {"rollout_id": attempt.rollout_id, "attempt_id": attempt.attempt.attempt_id}
    return {f"agentlightning.{name}": value for name, value in known.items()}


def request(*spans: ProtoSpan, **resource: str) -> bytes:
    group = ResourceSpans(scope_spans=[ScopeSpans(spans=spans)])
    group.resource.attributes.extend(key_values(resource))
    return ExportTraceServiceRequest(resource_spans=[group]).SerializeToString()


def key_values(attributes: dict[str, str]) -> list[KeyValue]:
    return [KeyValue(key=k, value=AnyValue(string_value=v)) for k, v in attributes.items()]


def proto(number: int, **attributes: AnyValue) -> ProtoSpan:
    return ProtoSpan(
        trace_id=bytes(15) + b"t",
        span_id=number.to_bytes(8, "big"),
        name=f"span {number}",
        attributes=[KeyValue(key=k, value=v) for k, v in attributes.items()],
    )


async def post(server: LightningStoreServer, body: bytes, **headers: str):
    async with (
        aiohttp.ClientSession() as http,
        http.post(server.otlp_traces_endpoint(), data=body, headers=HEADERS | headers) as response,
    ):
        return response.status, await response.read(), response.headers


async def test_a_plain_exporter_writes_spans(server, attempt):
    exporter = OTLPSpanExporter(server.otlp_traces_endpoint(), compression=Compression.Gzip)
    provider = TracerProvider(resource=Resource({"service.name": "agent"} | ids(attempt)))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer = provider.get_tracer("tests")
    with tracer.start_as_current_span("outer") as outer:
        with tracer.start_as_current_span("inner", attributes={"n": [1, 2], "ok": True}) as inner:
            inner.add_event("seen", {"x": 1.5})
        outer.set_status(Status(StatusCode.ERROR, "broke"))
    provider.shutdown()

    first, second = await server.query_spans(attempt.rollout_id)
    assert (first.name, second.name) == ("inner", "outer")
    assert (first.sequence_id, second.sequence_id) == (1, 2)
    assert first.parent_id == second.span_id
    assert first.trace_id == second.trace_id == f"{outer.get_span_context().trace_id:032x}"
    assert first.attributes == {"n": [1, 2], "ok": True}
    assert (first.events[0].name, first.events[0].attributes) == ("seen", {"x": 1.5})
    assert second.status == TraceStatus(status_code="ERROR", description="broke")
    assert second.resource.attributes["service.name"] == "agent"
    assert abs(second.end_time - outer.end_time / 1e9) < 1e-6
    assert (await server.get_latest_attempt(attempt.rollout_id)).status == "running"


async def test_the_exporter_needs_the_token():
    async with served(token="s3cret-long-enough") as (server, _):
        attempt = await server.start_rollout("task")
        span = TracerProvider(resource=Resource(ids(attempt))).get_tracer("tests").start_span("one")
        span.end()
        endpoint = f"{server.address}/v1/traces"
        refused = OTLPSpanExporter(endpoint).export([span])
        taken = OTLPSpanExporter(endpoint, headers=server.headers).export([span])
        assert (refused, taken) == (SpanExportResult.FAILURE, SpanExportResult.SUCCESS)
        by_address = OTLPSpanExporter(server.otlp_traces_endpoint()).export([span])
        assert by_address == SpanExportResult.SUCCESS
        assert len(await server.query_spans(attempt.rollout_id)) == 1


@pytest.mark.parametrize("code", [-(2**31), -4, -3, -2, -1, 3, 2**31 - 1])
async def test_a_status_that_opentelemetry_does_not_have_is_no_status(server, attempt, code):
    known = {k: AnyValue(string_value=v) for k, v in ids(attempt).items()}
    odd, failed = proto(1, **known), proto(2, **known)
    odd.status.message, odd.status.code, failed.status.code = "odd", code, 2
    status, content, _ = await post(server, request(odd, failed))
    assert status == 200
    assert not ExportTraceServiceResponse.FromString(content).partial_success.rejected_spans
    first, second = await server.query_spans(attempt.rollout_id)
    assert first.status == TraceStatus(status_code="UNSET", description="odd")
    assert second.status.status_code == "ERROR"


@pytest.mark.parametrize("is_damaged", [False, True])
async def test_spans_without_a_place_are_counted(server, attempt, is_damaged, monkeypatch):
    turn = server.target.turn

    async def of_damaged(spans, **claim):
        if spans[0].attempt_id == "at-none":
            raise DamagedRecordError("attempt 'at-none' cannot be read")
        return await turn(spans, **claim)

    monkeypatch.setattr(server.target, "turn", of_damaged if is_damaged else turn)
    known = {k: AnyValue(string_value=v) for k, v in ids(attempt).items()}
    unknown = known | {"agentlightning.attempt_id": AnyValue(string_value="at-none")}
    bad = proto(4, **known)
    bad.span_id = b"short"
    body = request(proto(1, **known), proto(2), proto(3, **unknown), bad, proto(5, **known))
    status, content, _ = await post(server, body)
    assert status == 200
    partial = ExportTraceServiceResponse.FromString(content).partial_success
    assert partial.rejected_spans == 3
    for word in ("span 2", "agentlightning.rollout_id", "span 3", "at-none", "span 4"):
        assert word in partial.error_message
    spans = await server.query_spans(attempt.rollout_id)
    assert [span.name for span in spans] == ["span 1", "span 5"]

    status, content, _ = await post(server, request(proto(6), **ids(attempt)))
    assert (status, content) == (200, b"")


async def test_a_span_says_more_than_its_resource(server, attempt):
    other = await server.start_rollout("other")
    own = {k: AnyValue(string_value=v) for k, v in ids(other).items()}
    await post(server, request(proto(1, **own), proto(2), **ids(attempt)))
    assert [span.name for span in await server.query_spans(other.rollout_id)] == ["span 1"]
    assert [span.name for span in await server.query_spans(attempt.rollout_id)] == ["span 2"]


async def test_numbers_are_taken_from_attributes(server, attempt):
    key = "agentlightning.span_sequence_id"
    body = request(
        proto(1, **{key: AnyValue(int_value=7)}),
        proto(2, **{key: AnyValue(string_value="9")}),
        proto(3, **{key: AnyValue(int_value=-1)}),
        proto(4, **{key: AnyValue(string_value="ten")}),
        **ids(attempt),
    )
    await post(server, body)
    spans = {span.name: span.sequence_id for span in await server.query_spans(attempt.rollout_id)}
    assert spans == {"span 1": 7, "span 2": 9, "span 3": 10, "span 4": 11}


async def test_answers_are_packed_when_the_client_can_unpack(server, attempt):
    body = gzip.compress(request(proto(1)))
    headers = {"Content-Encoding": "gzip", "Accept-Encoding": "gzip"}
    status, content, answer = await post(server, body, **headers)
    assert (status, answer["Content-Encoding"]) == (200, "gzip")
    # aiohttp has unpacked it.
    assert ExportTraceServiceResponse.FromString(content).partial_success.rejected_spans == 1


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{}", {"Content-Type": "application/json"}, 400),
        (b"no protobuf", {}, 400),
        (b"no gzip", {"Content-Encoding": "gzip"}, 400),
        (gzip.compress(b"x", mtime=0)[:-4], {"Content-Encoding": "gzip"}, 400),
        (b"", {"Content-Encoding": "br"}, 415),
    ],
)
async def test_what_is_no_trace_is_refused(server, body, headers, status):
    assert (await post(server, body, **headers))[0] == status


@pytest.mark.parametrize("signal", ["metrics", "logs", "development/profiles"])
async def test_other_signals_are_not_stored(server, signal):
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{server.endpoint}/v1/{signal}", data=b"", headers=HEADERS) as response,
    ):
        assert response.status == 501


def test_values_that_a_span_cannot_hold_are_unfolded():
    one, empty = AnyValue(int_value=1), AnyValue(kvlist_value=KeyValueList())
    pairs = [KeyValue(key="a", value=one), KeyValue(key="b", value=empty)]
    nested = KeyValueList(values=pairs)
    mixed = ArrayValue(values=[AnyValue(int_value=1), AnyValue(string_value="x")])
    span = proto(
        1,
        map=AnyValue(kvlist_value=nested),
        mixed=AnyValue(array_value=mixed),
        same=AnyValue(array_value=ArrayValue(values=[AnyValue(int_value=1)] * 2)),
        none=AnyValue(),
        raw=AnyValue(bytes_value=b"\x01\xff"),
        nan=AnyValue(double_value=float("nan")),
    )
    (read,), rejected = otlp.spans_of(request(span, **OWNER))
    assert not rejected
    unfolded = {"map.a": 1, "map.b": "", "mixed.0": 1, "mixed.1": "x"}
    assert read.attributes == {**unfolded, "same": [1, 1], "none": "", "raw": "01ff", "nan": "NaN"}


@pytest.mark.parametrize(
    ("values", "read"),
    [
        ([{"int_value": 0}, {"int_value": 5}], {"x": [0, 5]}),
        ([{"bool_value": True}, {"bool_value": False}], {"x": [True, False]}),
        ([{"string_value": "a"}, {"string_value": ""}], {"x": ["a", ""]}),
        ([{"double_value": 0.5}, {"double_value": 0.0}], {"x": [0.5, 0.0]}),
        ([], {"x": []}),
        # What is of another kind reads as 0, "" or False, and is not to be taken for that.
        ([{"int_value": 1}, {"string_value": "b"}], {"x.0": 1, "x.1": "b"}),
        ([{"string_value": "a"}, {"int_value": 2}], {"x.0": "a", "x.1": 2}),
        ([{"int_value": 1}, {}], {"x.0": 1, "x.1": ""}),
        ([{"bool_value": True}, {"int_value": 0}], {"x.0": True, "x.1": 0}),
        ([{"double_value": 1.5}, {"double_value": float("inf")}], {"x.0": 1.5, "x.1": "Infinity"}),
    ],
)
def test_lists_are_read_as_they_are(values, read):
    array = ArrayValue(values=[AnyValue(**value) for value in values])
    (packed,), rejected = otlp.packed_of(request(proto(1, x=AnyValue(array_value=array)), **OWNER))
    assert not rejected
    assert unpacked([packed])[0].attributes == read


async def test_number_beyond_every_store_is_rejected(server, attempt):
    key = "agentlightning.span_sequence_id"
    body = request(proto(1, **{key: AnyValue(int_value=2**60)}), proto(2), **ids(attempt))
    _, content, _ = await post(server, body)
    partial = ExportTraceServiceResponse.FromString(content).partial_success
    assert partial.rejected_spans == 1
    assert f"its number is {2**60}" in partial.error_message
    assert [span.name for span in await server.query_spans(attempt.rollout_id)] == ["span 2"]


values = (
    st.text(max_size=5)
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
)
attributes = st.dictionaries(st.text(min_size=1, max_size=5), values, max_size=3)
trace_ids, span_ids = st.binary(min_size=16, max_size=16), st.binary(min_size=8, max_size=8)


@given(attributes, attributes, trace_ids, span_ids, st.none() | span_ids, st.integers(1, 10**9))
def test_spans_survive_the_wire(own, of_resource, trace_id, span_id, parent_id, number):
    of = {"trace_id": trace_id.hex()}
    context = SpanContext(**of, span_id=span_id.hex(), is_remote=False, trace_state={"a": "1"})
    parent = parent_id and SpanContext(
        **of, span_id=parent_id.hex(), is_remote=True, trace_state={}
    )
    span = Span(
        rollout_id="r",
        attempt_id="a",
        sequence_id=number,
        trace_id=trace_id.hex(),
        span_id=span_id.hex(),
        parent_id=parent_id and parent_id.hex(),
        name="a span",
        status=TraceStatus(status_code="OK"),
        attributes=own,
        events=[Event(name="e", attributes=of_resource, timestamp=1.5)],
        links=[Link(context=context, attributes=own)],
        start_time=number + 0.25,
        end_time=None,
        context=context,
        parent=parent,
        resource=OtelResource(attributes=of_resource, schema_url="https://schema"),
    )
    (read,), rejected = otlp.spans_of(request_of([span]))
    assert not rejected
    ours = OWNER | {"agentlightning.span_sequence_id": number}
    assert read == span.model_copy(update={"attributes": own | ours})
