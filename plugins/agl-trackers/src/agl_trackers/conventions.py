"""A model call in the words of others: OpenInference's attributes, and OpenTelemetry's for GenAI.

OpenInference writes each message flat (``llm.input_messages.0.message.role``), GenAI all of them as
JSON of typed parts (``gen_ai.input.messages``).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agl.semconv import ModelCallAttributes as Key
from agl.types import Attributes, Span
from agl.utils.json_values import parse_json
from agl_records.training_data import ModelCall
from agl_trackers.records import shown

KIND = "openinference.span.kind"
SESSION = "session.id"
CONVERSATION = "gen_ai.conversation.id"
PROMPT_TOKENS = (Key.INPUT_TOKENS.value, "llm.token_count.prompt")
COMPLETION_TOKENS = (Key.OUTPUT_TOKENS.value, "llm.token_count.completion")


def call_attributes(call: ModelCall, records: Sequence[Span]) -> Attributes:
    """What both conventions say of a call.

    Args:
        records: The spans that recorded it, the best first.
    """
    asked = [clean(message) for message in call.messages]
    tools = [clean(tool) for tool in call.tools]
    answers = [choice.response for choice in call.choices] or [call.response]
    said = [clean({"role": "assistant", **answer}) for answer in answers if answer is not None]
    reasons = [choice.finish_reason for choice in call.choices] or [call.finish_reason]
    prompt = _number(records, PROMPT_TOKENS, call.prompt_token_ids)
    completion = _number(records, COMPLETION_TOKENS, call.response_token_ids)
    total = None if prompt is None or completion is None else prompt + completion
    provider = _first(records, (Key.PROVIDER.value, "llm.provider"))
    found: dict[str, Any] = {
        KIND: "LLM",
        "llm.model_name": call.model or call.requested_model,
        "llm.provider": provider,
        "llm.token_count.prompt": prompt,
        "llm.token_count.completion": completion,
        "llm.token_count.total": total,
        "llm.finish_reason": call.finish_reason,
        "input.value": _json({"messages": asked}),
        "input.mime_type": "application/json",
        "output.value": text_of(said[0]) if said else None,
        Key.OPERATION.value: "chat",
        Key.PROVIDER.value: provider,
        Key.REQUEST_MODEL.value: call.requested_model or call.model,
        Key.RESPONSE_MODEL.value: call.model,
        Key.RESPONSE_ID.value: call.response_id,
        Key.FINISH_REASONS.value: [reason for reason in reasons if reason] or None,
        Key.INPUT_TOKENS.value: prompt,
        Key.OUTPUT_TOKENS.value: completion,
        Key.AGENT_NAME.value: call.agent_name,
        Key.INPUT_MESSAGES.value: _json([_in_parts(message) for message in asked]),
        Key.OUTPUT_MESSAGES.value: _json(
            [
                {**_in_parts(message), "finish_reason": reason or "stop"}
                for message, reason in zip(said, reasons, strict=False)
            ]
        ),
        Key.TOOL_DEFINITIONS.value: _json(tools) if tools else None,
        **_flat_messages("llm.input_messages", asked),
        **_flat_messages("llm.output_messages", said),
    }
    for number, tool in enumerate(tools):
        found[f"llm.tools.{number}.tool.json_schema"] = _json(tool)
    return {key: value for key, value in found.items() if value is not None}


def text_of(message: Mapping[str, Any]) -> str:
    """What a message says, or which tools it calls."""
    content = message.get("content")
    if content:
        return content if isinstance(content, str) else _json(content)
    return _json(message["tool_calls"]) if message.get("tool_calls") else ""


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def clean(value: Any) -> Any:
    """The same with each text shown."""
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, dict):
        return {key: clean(item) for key, item in value.items()}
    return [clean(item) for item in value] if isinstance(value, list | tuple) else value


def _first(records: Iterable[Span], keys: Sequence[str]) -> Any:
    values = (span.attributes.get(key) for span in records for key in keys)
    return next((value for value in values if value is not None), None)


def _number(records: Sequence[Span], keys: Sequence[str], ids: Sequence[int] | None) -> int | None:
    """How many tokens: as was said, or as there are ids."""
    value = _first(records, keys)
    if isinstance(value, int | float):
        return int(value)
    return len(ids) if ids else None


def _flat_messages(prefix: str, messages: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, message in enumerate(messages):
        at = f"{prefix}.{number}.message"
        found[f"{at}.role"] = message.get("role")
        found[f"{at}.tool_call_id"] = message.get("tool_call_id")
        content = message.get("content")
        if isinstance(content, list):
            for place, part in enumerate(content):
                found |= _flat_part(f"{at}.contents.{place}.message_content", part)
        else:
            found[f"{at}.content"] = content
        for place, call in enumerate(message.get("tool_calls") or ()):
            to = f"{at}.tool_calls.{place}.tool_call"
            function = call.get("function", {})
            found[f"{to}.id"] = call.get("id")
            found[f"{to}.function.name"] = function.get("name")
            found[f"{to}.function.arguments"] = function.get("arguments")
    return found


def _flat_part(at: str, part: Mapping[str, Any]) -> dict[str, Any]:
    if part.get("type") == "image_url":
        return {f"{at}.type": "image", f"{at}.image.image.url": part["image_url"].get("url")}
    return {f"{at}.type": "text", f"{at}.text": part.get("text") or _json(part)}


def _in_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    """A chat message in GenAI's form."""
    content = message.get("content")
    if message.get("role") == "tool":
        answer = {"type": "tool_call_response", "id": message.get("tool_call_id")}
        return {"role": "tool", "parts": [{**answer, "response": content}]}
    parts: list[dict[str, Any]] = []
    for part in content if isinstance(content, list) else [content] if content else ():
        if isinstance(part, str):
            parts.append({"type": "text", "content": part})
        elif part.get("type") == "image_url":
            url = part["image_url"].get("url")
            parts.append({"type": "uri", "modality": "image", "uri": url})
        else:
            parts.append({"type": "text", "content": part.get("text") or _json(part)})
    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        about = {"type": "tool_call", "id": call.get("id"), "name": function.get("name")}
        parts.append({**about, "arguments": _arguments(function.get("arguments"))})
    return {"role": message.get("role"), "parts": parts}


def _arguments(text: Any) -> Any:
    """What a tool is called with: JSON that a model wrote, or the text that was to be some."""
    try:
        return parse_json(text) if isinstance(text, str) else text
    except ValueError:
        return text
