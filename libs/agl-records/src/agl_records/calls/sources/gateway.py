"""Spans of agl-gateway: OpenTelemetry's GenAI keys, with token ids and log-probabilities."""

from agl.algorithm.gateway import is_gateway_span as is_gateway_span
from agl.types import Span
from agl_records.calls.sources import parts
from agl_records.calls.sources.fields import make_call, response_fields, token_fields
from agl_records.training_data import ModelCall


def read(span: Span) -> ModelCall | None:
    """The call, or None when another wrote the span."""
    if not is_gateway_span(span):
        return None
    response = response_fields(span.attributes)
    return make_call(
        span,
        served_model=response["requested_model"],
        **parts.message_fields(span.attributes),
        **response,
        **token_fields(span.attributes),
    )
