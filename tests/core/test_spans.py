from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.trace import SpanContext

from agl.errors import InvalidRecordError
from agl.store.span_checks import add_accepted
from agl.types import Span


def test_attributes_that_are_none_are_left_out():
    # Newer SDKs let None through, and AgentOps sets it.
    finished = ReadableSpan(
        name="call",
        context=SpanContext(trace_id=1, span_id=2, is_remote=False),
        attributes={"gen_ai.prompt.0.content": None, "gen_ai.prompt.0.role": "user"},
    )
    span = Span.from_opentelemetry(finished, "ro-1", "at-1", 1)
    assert span.attributes == {"gen_ai.prompt.0.role": "user"}


@pytest.mark.parametrize(
    ("odd", "known"),
    [
        (
            {"a": {"b": 1, "c": {}}, "d": [1, "x", None], "e": b"\xff", "f": [{"g": [1, 2]}]},
            {"a.b": 1, "a.c": "", "d.0": 1, "d.1": "x", "d.2": "", "e": "ff", "f.0.g": [1, 2]},
        ),
        (
            {"k": {"x": 1}, "k.x": 9, "k.x.again": 10},  # all values of one key are kept
            {"k.x": 1, "k.x.again": 9, "k.x.again.again": 10},
        ),
    ],
)
def test_attributes_that_only_newer_sdks_take_are_unfolded(odd, known):
    started = TracerProvider().get_tracer("any").start_span("call", attributes=odd)
    if len(started.attributes) < len(odd):
        pytest.skip("this SDK leaves them out")
    assert Span.from_opentelemetry(started, "ro-1", "at-1", 1).attributes == known


@pytest.mark.parametrize("bad", [set[int](), {37}, {0, 63}])
async def test_a_refused_span_costs_few_calls_and_its_neighbours_nothing(bad):
    given = [Span.from_attributes(attributes={"i": i}, name=str(i)) for i in range(64)]
    calls = []

    async def add(spans: Sequence[Span]) -> Sequence[Span]:
        calls.append(spans)
        if any(int(span.name) in bad for span in spans):
            raise InvalidRecordError("no number")
        return spans

    added, refused = await add_accepted(add, given)
    assert added == [span for span in given if int(span.name) not in bad]
    assert (len(refused), len(calls) <= 1 + 12 * len(bad)) == (len(bad), True)
