# pyright: standard
"""Anthropic's Messages: what was said, and the tools, as chat completions have them."""

import json
from collections.abc import Iterator
from typing import Any

from agl_records.dialects.chat import as_chat, joined, tool_call, with_reasoning
from agl_records.dialects.fields import HOSTED_ALONE, Fields, refuse

_BILLING = "x-anthropic-billing-header:"
"""Begins a block of Claude Code's system prompt that Anthropic's accounts read, and no model."""
_LEFT_OUT = ("document", "server_tool_use", "mcp_tool_use", "container_upload")
_SEARCH = "tool_search_tool"
_HOSTED = ("web_search", "web_fetch", "code_execution", "mcp_toolset", _SEARCH)
"""Beginnings of the types of tools that Anthropic's servers run."""
INVALID_JSON = "INVALID_JSON"
"""Key of the input of a tool call whose arguments are no JSON object, as Anthropic advises."""


def conversation(request: Fields) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Messages and tools of a request.

    Raises:
        FieldError: A field is wrong, or cannot be translated.
    """
    system = request.any("system")
    if isinstance(system, list):
        texts = ((one, one.get("text") if isinstance(one, dict) else None) for one in system)
        system = [block for block, text in texts if not str(text).startswith(_BILLING)]
    messages: list[dict[str, Any]] = []
    if system:
        messages.append({"role": "system", "content": _content(request, system, "system")})
    referred: set[str] = set()
    for one in request.objects("messages"):
        messages += message(one, referred)
    offered = list(request.objects("tools"))
    hosted = [tool for tool in offered if str(tool.peek("type")).startswith(_HOSTED)]
    is_searched = any(str(tool.peek("type")).startswith(_SEARCH) for tool in hosted)
    tools = [_tool(tool, None if is_searched else referred) for tool in offered]
    if hosted and len(hosted) == len(offered):
        request.refuse("tools", HOSTED_ALONE)
    return messages, [tool for tool in tools if tool is not None]


def message(message: Fields, referred: set[str]) -> list[dict[str, Any]]:
    """A message; results of tools that stand in it are messages of their own.

    ``referred`` gets the names of deferred tools that were found.

    Raises:
        FieldError: It has no role or content, or something that cannot be translated.
    """
    role = message.one_of("role", ("user", "assistant", "system"), "see 'messages'")
    content = message.any("content")
    message.end()
    if content is None and message.is_recorded:
        content = ""
    if role is None or content is None:
        refuse(message.path, "a message needs 'role' and 'content'")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if role == "assistant":
        return [_assistant(message, content)]
    return _user(message, content, role, referred)


def _user(message: Fields, content: Any, role: str, referred: set[str]) -> list[dict[str, Any]]:
    """Results of tools are messages of their own in chat completions; the order stays."""
    messages: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []

    def close() -> None:
        if parts:
            messages.append({"role": role, "content": joined(parts)})
            parts.clear()

    for block in _blocks(message, content, "content"):
        kind = block.need("type", str)
        if kind == "tool_result":
            close()
            messages.append(_tool_result(block, referred))
        elif part := _part(block, kind):
            parts.append(part)
    close()
    return messages


def _tool_result(block: Fields, referred: set[str]) -> dict[str, Any]:
    call_id, content = block.need("tool_use_id", str, ""), block.any("content")
    is_error = block.get("is_error", bool)
    block.end("cache_control")
    text = "" if content is None else _content(block, content, "content", referred)
    if is_error and not block.is_recorded:
        block.degrade("'is_error'", "chat completions say in the text that a tool failed")
        text = text or "The tool failed."
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def _assistant(message: Fields, content: Any) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for block in _blocks(message, content, "content"):
        kind = block.need("type", str)
        if kind == "tool_use":
            name, call_id = block.need("name", str), block.need("id", str, "")
            calls.append(tool_call(call_id, name, _arguments(block)))
            block.end("cache_control")
        elif kind == "thinking":
            thoughts.append(block.need("thinking", str))
            block.end("signature")
        elif kind == "redacted_thinking" and not block.is_recorded:
            thoughts.append(block.degrade("a thought", "only its own server can read it"))
        elif part := _part(block, kind):
            parts.append(part)
    chat: dict[str, Any] = {"role": "assistant", "content": joined(parts) if parts else None}
    if calls:
        chat["tool_calls"] = calls
    return chat if message.is_recorded else with_reasoning(chat, "\n".join(thoughts))


def _arguments(block: Fields) -> str:
    given = block.need("input", dict, {})
    invalid = given.get(INVALID_JSON) if len(given) == 1 else None
    # With the spaces that most models write, and so most likely the tokens that they sampled.
    return invalid if isinstance(invalid, str) else json.dumps(given, ensure_ascii=False)


def _content(
    owner: Fields, content: Any, name: str, referred: set[str] | None = None
) -> str | list[dict[str, Any]]:
    """The same as one message's content; without ``referred`` no tools are deferred."""
    if isinstance(content, str):
        return content
    parts: list[dict[str, Any]] = []
    for block in _blocks(owner, content, name):
        kind = block.need("type", str)
        if kind == "tool_reference" and referred is not None:
            found = block.need("tool_name", str)
            block.end("cache_control")
            referred.add(found)
            # Anthropic shows the definition here; of chat completions, 'tools' then has it.
            parts.append({"type": "text", "text": f"{found} can be called now."})
        elif part := _part(block, kind):
            parts.append(part)
    return joined(parts) if parts else ""


def _blocks(owner: Fields, content: Any, name: str) -> Iterator[Fields]:
    if not isinstance(content, list):
        refuse(owner.at(name), "expected a string or a list of content blocks")
    for number, block in enumerate(content):
        yield owner.within(block, f"{name}.{number}")


def _part(block: Fields, kind: str) -> dict[str, Any] | None:
    if kind == "text":
        part: dict[str, Any] = {"type": "text", "text": block.need("text", str)}
        if block.any("citations") and not block.is_recorded:
            block.degrade("'citations'", "the model's server takes the text alone")
    elif kind == "search_result":
        if not block.is_recorded:
            block.degrade(f"a block of type {kind!r}", "the model's server takes it as text")
        said = [block.need("title", str), block.need("source", str)]
        said += [one.need("text", str) for one in block.objects("content")]
        part = {"type": "text", "text": "\n".join(said)}
    elif kind == "image":
        source = block.object("source")
        part = {"type": "image_url", "image_url": {"url": _image_url(source, block)}}
    elif (kind in _LEFT_OUT or kind.endswith("_tool_result")) and not block.is_recorded:
        source = block.object("source")
        is_text = source is not None and source.peek("type") == "text"
        note = block.degrade(
            f"a block of type {kind!r}", "the model's server takes texts and images"
        )
        return {"type": "text", "text": source.need("data", str) if source and is_text else note}
    else:
        block.refuse(
            "type",
            f"the gateway cannot translate a block of type {kind!r} for the model's server; it "
            "takes text, image, tool_use, tool_result and thinking. Give what it says as text",
        )
        return None
    block.end("cache_control")
    return part


def _image_url(source: Fields | None, block: Fields) -> str:
    if source is None:
        refuse(block.at("source"), "is missing; expected {'type': 'base64' or 'url', ...}")
    kind = source.one_of("type", ("base64", "url"), "send the image itself")
    if kind == "url":
        url = source.need("url", str)
    else:
        url = f"data:{source.need('media_type', str)};base64,{source.need('data', str)}"
    source.end()
    return url


def _tool(tool: Fields, referred: set[str] | None) -> dict[str, Any] | None:
    """None for a deferred tool that no result of a search has named yet, and for a server's.

    Without ``referred``, the names of those that were found, the search is left out.
    """
    kind = tool.peek("type")
    if str(kind).startswith(_HOSTED) and not tool.is_recorded:
        tool.degrade(f"a tool of type {kind!r}", "only Anthropic's servers run it")
        return None
    why = "only Anthropic's models know it; offer a function of the agent's own"
    if tool.one_of("type", ("custom",), why) not in (None, "custom"):
        return None
    function = {
        "name": tool.need("name", str),
        "description": tool.get("description", str),
        "parameters": tool.need("input_schema", dict, {}),
        "strict": tool.get("strict", bool),
    }
    is_deferred = tool.get("defer_loading", bool)
    tool.end("cache_control", "eager_input_streaming")
    if is_deferred and referred is not None and function["name"] not in referred:
        return None
    return as_chat({name: value for name, value in function.items() if value is not None})
