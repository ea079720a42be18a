"""Model calls recorded as operations (Weave): the output of one is the client's answer."""

from collections.abc import Mapping
from typing import Any

from agl.semconv import LightningSpanAttributes
from agl.types import ModelCall, Span
from agl.utils.otel import filter_attributes, unflatten_attributes
from agl_adapters.sources.fields import completion_fields, make_call, token_ids

OUTPUT = LightningSpanAttributes.OPERATION_OUTPUT.value
INPUT = LightningSpanAttributes.OPERATION_INPUT.value


def read(span: Span) -> ModelCall | None:
    """The call, or None when the output is no chat completion."""
    if not any(key.startswith(f"{OUTPUT}.choices.") for key in span.attributes):
        return None
    output = _nested(span.attributes, OUTPUT)
    request = _nested(span.attributes, INPUT)
    message = output["choices"][0].get("message") or {}
    fields = completion_fields(output)
    for name in ("prompt_token_ids", "response_token_ids"):
        fields[name] = fields[name] or token_ids(span.attributes.get(name))
    return make_call(
        span,
        messages=list(request.get("messages") or []),
        tools=list(request.get("tools") or []),
        response=dict(message) if message else None,
        **fields,
    )


def _nested(attributes: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return unflatten_attributes(filter_attributes(attributes, prefix))
