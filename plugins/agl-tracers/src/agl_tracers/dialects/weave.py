# pyright: standard
"""Model calls recorded as operations (Weave): a client's request and its answer, unfolded.

Answers are read in the forms of chat completions, of the Responses API and of Anthropic's Messages.
"""

from collections.abc import Mapping
from typing import Any

from agl.semconv import LightningSpanAttributes
from agl.types import Span
from agl.utils.json_values import parse_json
from agl.utils.otel import attributes_under, from_attributes
from agl_records.calls.sources.dialect import Dialect
from agl_records.calls.sources.fields import make_call, text, token_ids
from agl_records.training_data import ModelCall
from agl_tracers.dialects.clients import (
    answer_fields,
    anthropic_answer,
    anthropic_request,
    responses_answer,
    responses_request,
)

_OUTPUT = LightningSpanAttributes.OPERATION_OUTPUT.value
_INPUT = LightningSpanAttributes.OPERATION_INPUT.value
_KIND = "weave.kind"


class Weave(Dialect):
    """Weave's operations: a client's request and its answer."""

    def read(self, span: Span) -> ModelCall | None:
        """The call, or None when neither the output nor a failure is that of a model."""
        attributes = span.attributes
        if any(key.startswith(f"{_OUTPUT}.choices.") for key in attributes):
            return _chat_completion(span)
        if attributes.get(f"{_OUTPUT}.object") == "response":
            fields = responses_request(_nested(attributes, _INPUT))
            return make_call(span, **fields, **responses_answer(_nested(attributes, _OUTPUT)))
        is_message = attributes.get(f"{_OUTPUT}.type") == "message"
        if is_message and f"{_OUTPUT}.stop_reason" in attributes:
            fields = anthropic_request(_nested(attributes, _INPUT))
            return make_call(span, **fields, **anthropic_answer(_nested(attributes, _OUTPUT)))
        if span.status.status_code == "ERROR" and attributes.get(_KIND) == "llm":
            return _failed_call(span)
        return None


def _chat_completion(span: Span) -> ModelCall:
    """The call of which the output is a chat completion."""
    output = _nested(span.attributes, _OUTPUT)
    request = _nested(span.attributes, _INPUT)
    for choice in output["choices"]:
        if isinstance(choice.get("logprobs"), str):
            choice["logprobs"] = parse_json(choice["logprobs"])
    fields = answer_fields(output)
    for name in ("prompt_token_ids", "response_token_ids"):
        fields[name] = fields[name] or token_ids(span.attributes.get(name))
    return make_call(span, **_asked(request), **fields)


def _failed_call(span: Span) -> ModelCall | None:
    """The call that raised: there is a request, and no output to tell its form by."""
    request = _nested(span.attributes, _INPUT)
    if "input" in request:
        fields = responses_request(request)
    elif span.name.startswith("anthropic."):
        fields = anthropic_request(request)
    elif "messages" in request:
        fields = _asked(request)
    else:
        return None
    return make_call(span, **fields, model=text(request.get("model")))


def _asked(request: Mapping[str, Any]) -> dict[str, Any]:
    """Messages and tools of a chat completion, each nothing where it is no list."""
    names = ("messages", "tools")
    return {n: v if isinstance(v := request.get(n), list) else [] for n in names}


def _nested(attributes: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return from_attributes(attributes_under(attributes, prefix))
