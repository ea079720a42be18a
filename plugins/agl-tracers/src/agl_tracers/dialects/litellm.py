# pyright: standard
"""The two spans of LiteLLM's proxy, as 0.3's LLMProxy stored them.

``litellm_request`` has the flat keys and 0.3's token ids; ``raw_gen_ai_request`` below it has the
provider's request and answer as Python literals under ``llm.<provider>.*``.
"""

import ast
import re
from collections.abc import Mapping
from typing import Any

from agl.semconv import ModelCallAttributes as Key
from agl.types import Span
from agl_records.calls.sources import Dialect, genai
from agl_records.calls.sources.fields import completion_fields, make_call, text
from agl_records.dialects.chat import tool_call
from agl_records.training_data import ModelCall
from agl_tracers.dialects import openllmetry

RAW = "raw_gen_ai_request"
_FUNCTIONS = "llm.request.functions"
_TOOL_CALL = re.compile(r"gen_ai\.completion\.\d+\.function_call\.name$")
_PROVIDER = re.compile(r"llm\.([^.]+)\.")


class LiteLLM(Dialect):
    """LiteLLM's proxy, as 0.3 stored its two spans."""

    def read(self, span: Span) -> ModelCall | None:
        """The call, or None for other spans."""
        if span.name == openllmetry.LITELLM:
            fields = openllmetry.call_fields(span.attributes)
            if Key.INPUT_MESSAGES in span.attributes or Key.OUTPUT_MESSAGES in span.attributes:
                messages = genai.message_fields(span.attributes)
                # Answers are listed in both forms, their reasons to finish often in one of them.
                messages["choices"] = messages["choices"] or fields["choices"]
                messages["finish_reason"] = fields["finish_reason"] or messages["finish_reason"]
                fields.update(messages)
                fields["tools"] = fields["tools"] or openllmetry.tools(span.attributes, _FUNCTIONS)
                _add_tool_calls(fields["response"], span.attributes)
            return make_call(span, **fields)
        if span.name == RAW:
            return make_call(span, **_raw_fields(span.attributes))
        return None


def _add_tool_calls(response: dict[str, Any] | None, attributes: Mapping[str, Any]) -> None:
    """The tool calls of the answer, which stand beside its messages and have no ids."""
    calls = [
        tool_call("", str(name), attributes.get(key.replace(".name", ".arguments"), "{}"))
        for key, name in sorted(attributes.items())
        if _TOOL_CALL.match(key)
    ]
    if response is not None and calls and not response.get("tool_calls"):
        response["tool_calls"] = calls


def _raw_fields(attributes: Mapping[str, Any]) -> dict[str, Any]:
    provider = next((m[1] for key in attributes if (m := _PROVIDER.match(key))), "")

    def value(name: str) -> Any:
        return _literal(attributes.get(f"llm.{provider}.{name}"))

    output = {name: value(name) for name in ("prompt_token_ids", "response_token_ids")}
    output["choices"] = value("choices") or [{}]
    fields = completion_fields(output)
    return {
        **fields,
        "messages": value("messages") or [],
        "tools": value("tools") or [],
        "response": output["choices"][0].get("message"),
        "model": text(attributes.get(f"llm.{provider}.model")),
        "response_id": text(
            attributes.get(f"llm.{provider}.id") or attributes.get(Key.RESPONSE_ID)
        ),
    }


def _literal(value: Any) -> Any:
    if not isinstance(value, str) or not value:
        return value
    try:
        return ast.literal_eval(value)
    except (SyntaxError, MemoryError) as error:  # the latter for one that is nested too deeply
        raise ValueError(f"expected a Python literal, got {value[:80]!r}") from error
