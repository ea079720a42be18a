# pyright: standard
"""Calls of OpenAI's Responses API and of Anthropic's Messages, as chat completions have them."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from agl_learning.calls.sources.fields import checked_role, text


def responses_request(request: Mapping[str, Any]) -> dict[str, Any]:
    """``messages`` and ``tools`` of a request to the Responses API."""
    given = request.get("input") or []
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    system = request.get("instructions")
    first = [{"role": "system", "content": system}] if system else []
    tools = listed(request.get("tools"))
    return {"messages": [*first, *item_messages(items)], "tools": [flat_tool(t) for t in tools]}


def responses_answer(answer: Mapping[str, Any]) -> dict[str, Any]:
    """What a call has of an answer of the Responses API."""
    messages = item_messages(listed(answer.get("output")))
    message: dict[str, Any] = {"role": "assistant", "content": None}
    for each in messages:
        message.update({key: value for key, value in each.items() if value})
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    return {
        "response": message if messages else None,
        "model": text(answer.get("model")),
        "response_id": text(answer.get("id")),
        "finish_reason": "length" if answer.get("status") == "incomplete" else finish,
    }


def item_messages(items: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Chat messages of items; calls of tools belong to the assistant's message before them."""
    messages: list[dict[str, Any]] = []
    for item in items:
        kind = item.get("type", "message")
        if kind == "function_call":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            call = tool_call(item.get("call_id"), item["name"], item.get("arguments"))
            messages[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            output = item.get("output")
            messages.append(
                {
                    "role": "tool",
                    "tool_call_id": item.get("call_id") or "",
                    "content": output if isinstance(output, str) else content_of(output),
                }
            )
        elif kind == "message":
            content = content_of(item.get("content"))
            messages.append({"role": checked_role(item), "content": content})
    return messages


def flat_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool whose definition stands beside its type; tools of the provider stay as they are."""
    if tool.get("type") != "function" or "function" in tool:
        return dict(tool)
    return {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}


def anthropic_request(request: Mapping[str, Any]) -> dict[str, Any]:
    """``messages`` and ``tools`` of a request to Anthropic's Messages."""
    system = content_of(request.get("system"))
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for message in request.get("messages") or ():
        messages.extend(block_messages(checked_role(message), message.get("content")))
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool["name"],
                "description": tool.get("description") or "",
                "parameters": tool.get("input_schema") or {},
            },
        }
        for tool in listed(request.get("tools"))
        if "input_schema" in tool
    ]
    return {"messages": messages, "tools": tools}


def anthropic_answer(answer: Mapping[str, Any]) -> dict[str, Any]:
    """What a call has of an answer of Anthropic's Messages."""
    return {
        "response": next(iter(block_messages("assistant", answer.get("content"))), None),
        "model": text(answer.get("model")),
        "response_id": text(answer.get("id")),
        "finish_reason": text(answer.get("stop_reason")),
    }


def block_messages(role: str, content: Any) -> list[dict[str, Any]]:
    """Chat messages of one message of Anthropic's; each result of a tool is one of its own."""
    if not isinstance(content, list):
        return [{"role": role, "content": content or ""}]
    results: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for block in content:
        if block.get("type") == "tool_result":
            given = block.get("content")
            results.append(
                {
                    "role": "tool",
                    "tool_call_id": block.get("tool_use_id") or "",
                    "content": content_of(given) or "",
                }
            )
        elif block.get("type") == "tool_use":
            calls.append(tool_call(block.get("id"), block["name"], block.get("input") or {}))
    shown = content_of(content)
    if not calls and not shown:
        return results
    message: dict[str, Any] = {"role": role, "content": shown}
    return [*results, {**message, "tool_calls": calls} if calls else message]


def tool_call(call_id: Any, name: str, arguments: Any) -> dict[str, Any]:
    """A call in OpenAI's form, arguments as JSON."""
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments or {})
    function = {"name": name, "arguments": arguments}
    return {"id": call_id or "", "type": "function", "function": function}


def content_of(content: Any) -> str | list[dict[str, Any]] | None:
    """A message's content: the text where there is only one, else parts as OpenAI has them."""
    if not isinstance(content, list):
        return content or None
    parts = [part for item in content if (part := content_part(item)) is not None]
    if len(parts) == 1 and parts[0]["type"] == "text":
        return parts[0]["text"]
    return parts or None


def content_part(item: Mapping[str, Any]) -> dict[str, Any] | None:
    """Text or an image; None for what has a place of its own, and for thoughts."""
    kind = item.get("type")
    if kind in ("text", "input_text", "output_text"):
        return {"type": "text", "text": item["text"]}
    if kind == "refusal":
        return {"type": "text", "text": item["refusal"]}
    if kind == "input_image":
        return {"type": "image_url", "image_url": {"url": item["image_url"]}}
    if kind == "image":
        source = item["source"]
        data = f"data:{source.get('media_type')};base64,{source.get('data')}"
        return {"type": "image_url", "image_url": {"url": source.get("url") or data}}
    return None


def listed(value: Any) -> list[Any]:
    """The value, or nothing where it is no list."""
    return value if isinstance(value, list) else []
