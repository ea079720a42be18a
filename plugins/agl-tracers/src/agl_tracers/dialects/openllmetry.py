# pyright: standard
"""The older flat keys ``gen_ai.prompt.N.*`` and ``gen_ai.completion.N.*`` (AgentOps, OpenLLMetry).

0.3 adds token ids to them, under ``prompt_token_ids`` and ``response_token_ids``.
"""

from collections.abc import Mapping
from typing import Any

from agl.semconv import ModelCallAttributes as Key
from agl.types import Span
from agl_records.calls.sources import CALLS, Dialect
from agl_records.calls.sources.fields import (
    chat_message,
    decoded,
    from_json_text,
    make_call,
    numbered,
    response_fields,
    text,
    token_fields,
)
from agl_records.calls.sources.parts import called
from agl_records.training_data import Choice, ModelCall

LITELLM = "litellm_request"
"""Name of a span with these keys and others, which ``litellm`` reads."""
_PREFIXES = ("gen_ai.prompt.", "gen_ai.completion.")
_CONTENT_TYPES = ("text", "image_url", "input_audio", "file", "refusal")


class OpenLLMetry(Dialect):
    """OpenLLMetry's older keys, AgentOps' too: ``gen_ai.prompt.0.content`` and their like."""

    def read(self, span: Span) -> ModelCall | None:
        """The call, or None when the span has no such key or is an agent or a tool."""
        attributes = span.attributes
        if Key.INPUT_MESSAGES in attributes or Key.OUTPUT_MESSAGES in attributes:
            return None
        is_flat = span.name != LITELLM and any(key.startswith(_PREFIXES) for key in attributes)
        if not is_flat or attributes.get(Key.OPERATION, CALLS[0]) not in CALLS:
            return None
        return make_call(span, **call_fields(attributes))


def call_fields(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that these keys say about a call."""
    completions = numbered(attributes, "gen_ai.completion")
    fields = response_fields(attributes)
    if completions:
        fields["finish_reason"] = completions[0].get("finish_reason") or fields["finish_reason"]
    found = token_fields(attributes)
    answers = [_message({"role": "assistant", **completion}) for completion in completions]
    if not all(completion.get("finish_reason") for completion in completions):
        answers = answers[:1]  # what follows are further parts of the one answer
    return {
        **fields,
        **found,
        "messages": [_message(item) for item in numbered(attributes, "gen_ai.prompt")],
        "tools": tools(attributes, "gen_ai.request.functions"),
        "response": answers[0] if answers else None,
        "choices": [
            Choice(
                response=answer,
                token_ids=None if number else found["response_token_ids"],
                logprobs=None if number else found["response_logprobs"],
                finish_reason=text(completions[number].get("finish_reason")),
            )
            for number, answer in enumerate(answers)
        ],
    }


def tools(attributes: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    """The tool definitions under ``<prefix>.N.*``, in OpenAI's form."""
    return [_tool(item) for item in numbered(attributes, prefix)]


def _message(item: Mapping[str, Any]) -> dict[str, Any]:
    calls = [called(call) for call in _values(item.get("tool_calls"))]
    content = _content(item.get("content"))
    return chat_message(item, (content or None) if calls else content, calls)


def _content(value: Any) -> Any:
    # Content of several parts is written as the JSON text of the list.
    parts = decoded(value)
    if (
        isinstance(parts, list)
        and parts
        and all(isinstance(part, dict) and part.get("type") in _CONTENT_TYPES for part in parts)
    ):
        return parts
    return "" if value is None else value


def _tool(item: Mapping[str, Any]) -> dict[str, Any]:
    known = {"parameters": from_json_text(item["parameters"])} if "parameters" in item else {}
    return {"type": "function", "function": {**item, **known}}


def _values(items: Any) -> list[Any]:
    if not items:
        return []
    if isinstance(items, Mapping):
        return [items[index] for index in sorted(items, key=int)]
    return list(items)
