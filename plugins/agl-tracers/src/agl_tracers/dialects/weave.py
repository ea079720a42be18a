# pyright: standard
"""Model calls recorded as operations (Weave): a client's request and its answer, unfolded.

Answers are read in the forms of chat completions, of the Responses API and of Anthropic's Messages.
"""

from agl.semconv import LightningSpanAttributes
from agl.types import Span
from agl.utils.otel import attributes_under, from_attributes
from agl_records.calls.sources import Dialect
from agl_records.calls.sources.fields import from_json_text, make_call, token_ids
from agl_records.training_data import ModelCall
from agl_tracers.dialects.clients import call_fields

_OUTPUT = LightningSpanAttributes.OPERATION_OUTPUT.value
_INPUT = LightningSpanAttributes.OPERATION_INPUT.value
_CHOICES = f"{_OUTPUT}.choices."
_KIND = "weave.kind"


class Weave(Dialect):
    """Weave's operations: a client's request and its answer."""

    def read(self, span: Span) -> ModelCall | None:
        """The call, or None when neither the output nor a failure is that of a model."""
        attributes = span.attributes
        is_message = attributes.get(f"{_OUTPUT}.type") == "message"
        is_answer = (
            any(key.startswith(_CHOICES) for key in attributes)
            or attributes.get(f"{_OUTPUT}.object") == "response"
            or (is_message and f"{_OUTPUT}.stop_reason" in attributes)
        )
        has_failed = span.status.status_code == "ERROR" and attributes.get(_KIND) == "llm"
        if not is_answer and not has_failed:
            return None
        request, output = (
            from_attributes(attributes_under(attributes, name)) for name in (_INPUT, _OUTPUT)
        )
        for choice in output.get("choices", ()):
            choice["logprobs"] = from_json_text(choice.get("logprobs"))
        # A request that failed has no output to tell its form by.
        is_anthropic = not is_answer and span.name.startswith("anthropic.")
        fields = call_fields(request, output if is_answer else None, is_anthropic)
        if not is_answer and "messages" not in fields:
            return None
        for name in ("prompt_token_ids", "response_token_ids") if is_answer else ():
            fields.setdefault(name, token_ids(attributes.get(name)))
        return make_call(span, **fields)
