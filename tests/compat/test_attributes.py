"""OpenTelemetry's own objects as 0.3's ``utils.otel`` gives them."""

import pytest
from opentelemetry.sdk.trace import Tracer as SdkTracer, TracerProvider

import agl
from agentlightning.utils.otel import get_tracer, get_tracer_provider


async def test_spans_of_get_tracer_belong_to_the_open_trace() -> None:
    tracer = agl.OtelTracer()
    with tracer.lifespan():
        async with tracer.trace_context():
            assert isinstance(get_tracer_provider(), TracerProvider)
            assert isinstance(get_tracer(), SdkTracer)
            with get_tracer().start_as_current_span("kept"):
                pass
            with get_tracer(use_active_span_processor=False).start_as_current_span("dropped"):
                pass
        assert [span.name for span in tracer.get_last_trace()] == ["kept"]


@pytest.mark.parametrize("ask", [get_tracer, get_tracer_provider])
def test_without_a_provider_there_is_no_tracer(ask, monkeypatch) -> None:
    from opentelemetry import trace

    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    with pytest.raises(RuntimeError, match="not set up in this process"):
        ask()
