from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext

from agl.types import Span


def test_attributes_that_are_none_are_left_out() -> None:
    # Newer SDKs let None through, and AgentOps sets it.
    finished = ReadableSpan(
        name="call",
        context=SpanContext(trace_id=1, span_id=2, is_remote=False),
        attributes={"gen_ai.prompt.0.content": None, "gen_ai.prompt.0.role": "user"},
    )
    span = Span.from_opentelemetry(finished, "ro-1", "at-1", 1)
    assert span.attributes == {"gen_ai.prompt.0.role": "user"}
