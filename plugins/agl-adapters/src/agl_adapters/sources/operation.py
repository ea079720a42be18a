"""Model calls recorded as operations (Weave): the output of one is the client's answer."""

from collections.abc import Mapping
from typing import Any

from agl.semconv import LightningSpanAttributes, ModelCallAttributes as Key
from agl.types import ModelCall, Span
from agl.utils.otel import filter_attributes, unflatten_attributes
from agl_adapters.sources.fields import make_call, text, token_ids, token_logprobs

OUTPUT = LightningSpanAttributes.OPERATION_OUTPUT.value
INPUT = LightningSpanAttributes.OPERATION_INPUT.value


def read(span: Span) -> ModelCall | None:
    """The call, or None when the output is no chat completion."""
    if not any(key.startswith(f"{OUTPUT}.choices.") for key in span.attributes):
        return None
    output = _nested(span.attributes, OUTPUT)
    request = _nested(span.attributes, INPUT)
    first = output["choices"][0]
    message = first.get("message") or {}
    extra = first.get("provider_specific_fields") or {}
    return make_call(
        span,
        messages=list(request.get("messages") or []),
        tools=list(request.get("tools") or []),
        response=dict(message) if message else None,
        prompt_token_ids=token_ids(
            output.get("prompt_token_ids") or span.attributes.get(Key.PROMPT_TOKEN_IDS)
        ),
        response_token_ids=token_ids(
            (output.get("response_token_ids") or [None])[0]
            or first.get("token_ids")
            or extra.get("token_ids")
            or span.attributes.get(Key.RESPONSE_TOKEN_IDS)
        ),
        response_logprobs=token_logprobs((first.get("logprobs") or {}).get("content")),
        model=text(output.get("model")),
        response_id=text(output.get("id")),
        finish_reason=text(first.get("finish_reason")),
    )


def _nested(attributes: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return unflatten_attributes(filter_attributes(attributes, prefix))
