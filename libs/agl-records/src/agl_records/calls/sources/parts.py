# pyright: standard
"""Messages of any library as OpenAI's chat messages.

Libraries write the parts of a message under different names: a tool's answer is a
``tool_call_response`` of OpenTelemetry, a ``tool_result`` of Anthropic, a ``tool-result`` of
Vercel's AI SDK, a ``toolResult`` of Bedrock and Strands, and a ``ToolMessage`` of LangChain.
"""

from collections.abc import Mapping
from typing import Any

from agl_records.calls.sources.fields import chat_message, checked_role
from agl_records.dialects.chat import as_json, joined, tool_call

_CALLS = ("tool_call", "tool_use", "tool-call", "toolUse", "function_call")
_ANSWERS = ("tool_call_response", "tool_result", "tool-result", "toolResult")
_THOUGHTS = ("reasoning", "thinking", "redacted_thinking", "reasoningContent")
_IDS = ("id", "toolCallId", "toolUseId", "tool_use_id", "call_id", "tool_call_id")
_NAMES = ("name", "toolName")
_ARGUMENTS = ("arguments", "args", "input")
_RESULTS = ("response", "result", "output", "content")
_TEXTS = ("content", "text")
_OPENAI = ("image_url", "input_audio", "refusal")
"""Parts that are OpenAI's already."""
_URLS, _DATA = ("uri", "url", "image"), ("content", "data", "base64", "bytes")
_MEDIA = ("mime_type", "media_type", "mediaType")
_ROLES = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant"}
"""LangChain's roles."""


def chat_messages(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One message in OpenAI's form; each answer of a tool is a message of its own.

    Raises:
        ValueError: It has no role, or a part of an unknown kind.
    """
    message = _unwrapped(message)
    role = checked_role(message)
    parts = message.get("parts", message.get("content"))
    # LiteLLM has calls beside the parts.
    listed = message.get("tool_calls") or []
    if not isinstance(parts, list):
        calls = [called(call) for call in listed]
        return [chat_message(message, (parts or None) if calls else parts, calls)]
    messages: list[dict[str, Any]] = []
    content: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []

    def flush() -> None:
        said = joined(content) if content else None
        # What is said beside the answers of tools is a message of whoever sends them.
        of = {**message, "role": "user"} if messages and role == "tool" else message
        messages.append(chat_message(of, said, list(calls)))
        content.clear()

    for part in map(_named, parts):
        kind = part.get("type")
        if kind in _CALLS:
            calls.append(called(part))
        elif kind in _ANSWERS:
            if content:
                flush()
            messages.append(_answer(part))
        elif kind not in _THOUGHTS:
            content.append(_content(part))
    calls = calls or [called(call) for call in listed]
    if content or calls or not messages:
        flush()
    return messages


def called(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call of a tool in OpenAI's form."""
    if "function" in call:
        return dict(call)
    return tool_call(_first(call, _IDS) or "", _first(call, _NAMES) or "", _first(call, _ARGUMENTS))


def _unwrapped(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message of LangChain, which stands in the arguments of its constructor, as others are."""
    inner = message.get("kwargs") if message.get("lc") else message.get("data")
    if isinstance(inner, dict):
        message = {**message, **inner}
    if "role" in message or "type" not in message:
        return message
    kind = str(message["type"])
    return {**message, "role": _ROLES.get(kind, kind)}


def _named(part: Any) -> Mapping[str, Any]:
    """A part that says of what kind it is; Bedrock's have the kind as their one key."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if "type" in part or len(part) != 1:
        return part
    ((kind, value),) = part.items()
    return {**value, "type": kind} if isinstance(value, dict) else {"type": kind, kind: value}


def _answer(part: Mapping[str, Any]) -> dict[str, Any]:
    answer = _first(part, _RESULTS)
    if isinstance(answer, dict) and answer.keys() == {"type", "value"}:
        answer = answer["value"]  # of Vercel's AI SDK
    if isinstance(answer, list) and answer and all(map(_is_text, answer)):
        answer = "".join(str(block["text"]) for block in answer)
    content = "" if answer is None else as_json(answer)
    return {"role": "tool", "tool_call_id": _first(part, _IDS) or "", "content": content}


def _is_text(block: Any) -> bool:
    return isinstance(block, dict) and "text" in block and block.keys() <= {"type", "text"}


def _content(part: Mapping[str, Any]) -> dict[str, Any]:
    kind = part.get("type")
    if kind in ("text", "input_text", "output_text") and (said := _first(part, _TEXTS)) is not None:
        return {"type": "text", "text": said}
    if kind in _OPENAI or "file" in part:
        return dict(part)
    where = part["source"] if isinstance(part.get("source"), dict) else part
    url, data = _first(where, _URLS), _first(where, _DATA)
    if kind == "uri" or str(url).startswith(("http:", "https:", "data:")):
        return {"type": "image_url", "image_url": {"url": url}}
    if kind in ("blob", "image", "file") and isinstance(url or data, str):
        media = _first({**part, **where}, _MEDIA) or "image/png"
        return {"type": "image_url", "image_url": {"url": f"data:{media};base64,{url or data}"}}
    raise ValueError(f"expected a part of type text, uri, blob or tool_call, got {kind!r}")


def _first(values: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((values[name] for name in names if values.get(name) is not None), None)
