"""The two spans of LiteLLM's proxy, as 0.3's LLMProxy stored them.

``litellm_request`` has the flat keys and 0.3's token ids; ``raw_gen_ai_request`` below it has the
provider's request and answer as Python literals under ``llm.<provider>.*``.
"""

import ast
import re
from collections.abc import Mapping
from typing import Any

from agl.semconv import ModelCallAttributes as Key
from agl.types import ModelCall, Span
from agl_adapters.sources import flat, parts
from agl_adapters.sources.fields import make_call, text, token_ids, token_logprobs

REQUEST = "litellm_request"
RAW = "raw_gen_ai_request"
_PROVIDER = re.compile(r"llm\.([^.]+)\.")


def read(span: Span) -> ModelCall | None:
    """The call, or None for other spans."""
    if span.name == REQUEST:
        fields = flat.call_fields(span.attributes)
        if Key.INPUT_MESSAGES in span.attributes or Key.OUTPUT_MESSAGES in span.attributes:
            fields.update(parts.message_fields(span.attributes))
        return make_call(span, **fields)
    if span.name == RAW:
        return make_call(span, **_raw_fields(span.attributes))
    return None


def _raw_fields(attributes: Mapping[str, Any]) -> dict[str, Any]:
    provider = next((m[1] for key in attributes if (m := _PROVIDER.match(key))), "")

    def value(name: str) -> Any:
        return _literal(attributes.get(f"llm.{provider}.{name}"))

    choices = value("choices") or [{}]
    first = choices[0]
    extra = first.get("provider_specific_fields") or {}
    response_ids = value("response_token_ids")
    return {
        "messages": value("messages") or [],
        "tools": value("tools") or [],
        "response": first.get("message"),
        "prompt_token_ids": token_ids(value("prompt_token_ids")),
        "response_token_ids": token_ids(
            response_ids[0] if response_ids else first.get("token_ids") or extra.get("token_ids")
        ),
        "response_logprobs": token_logprobs((first.get("logprobs") or {}).get("content")),
        "model": text(attributes.get(f"llm.{provider}.model")),
        "response_id": text(
            attributes.get(f"llm.{provider}.id") or attributes.get(Key.RESPONSE_ID)
        ),
        "finish_reason": first.get("finish_reason"),
    }


def _literal(value: Any) -> Any:
    return ast.literal_eval(value) if isinstance(value, str) and value else value
