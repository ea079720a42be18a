"""Anthropic's ``/v1/messages``: a request, as the chat completion that asks for the same."""

import json
from collections.abc import Iterator
from typing import Any

from agl_gateway.dialect import Dialect
from agl_gateway.dialects.fields import Fields, read_json, refuse
from agl_gateway.dialects.messages_answer import INVALID_JSON, MessageExchange, error_body
from agl_gateway.dialects.translated import error_message, with_reasoning
from agl_gateway.errors import RefusedError

HINTS = {
    "mcp_servers": "offer the tools of the server in 'tools'",
    "container": "the model's server runs no code",
}
BILLING = "x-anthropic-billing-header:"
"""Begins a block of Claude Code's system prompt that Anthropic's accounts read, and no model."""
SCHEMA_NAME = "answer"
"""Chat completions want a name for the schema of an answer, which Anthropic's do not have."""


class Messages(Dialect):
    """Anthropic's messages. The backend is asked for a chat completion, and that is recorded."""

    def read(self, body: bytes) -> MessageExchange:
        return MessageExchange(to_chat(Fields(read_json(body))))

    def error(self, refused: RefusedError) -> bytes:
        message = error_message(refused.backend_body, refused.message)
        return error_body(refused.status, message)


class CountTokens(Dialect):
    """``/v1/messages/count_tokens``, which the gateway cannot answer: it has no tokenizer."""

    operation = ""
    error = Messages.error

    def read(self, body: bytes) -> MessageExchange:
        raise RefusedError(
            404,
            "the gateway counts no tokens before a call, since chat completions offer no such "
            "question; read 'usage.input_tokens' of the answers instead",
        )


def to_chat(request: Fields) -> dict[str, Any]:
    """The chat completion request.

    Raises:
        RefusedError: A field is wrong, or cannot be translated.
    """
    messages = list(_system(request.any("system")))
    referred: set[str] = set()
    for message in request.objects("messages"):
        messages += _message(message, referred)
    chat: dict[str, Any] = {"model": request.any("model"), "messages": messages}
    chat["max_completion_tokens"] = request.need("max_tokens", int)
    for name, kind in (("temperature", float), ("top_p", float), ("top_k", int), ("stream", bool)):
        chat[name] = request.get(name, kind)
    chat["stop"] = request.get("stop_sequences", list)
    if metadata := request.object("metadata"):
        chat["user"] = metadata.get("user_id", str)
        metadata.end()
    tools = (_tool(tool, referred) for tool in request.objects("tools"))
    chat["tools"] = [tool for tool in tools if tool is not None] or None
    if choice := request.object("tool_choice"):
        chat |= _tool_choice(choice)
    chat["reasoning_effort"] = _effort_of_thinking(request.object("thinking"))
    if output := request.object("output_config"):
        chat["reasoning_effort"] = output.get("effort", str) or chat["reasoning_effort"]
        chat["response_format"] = _format(output.object("format"))
        output.end()
    request.pass_over("cache_control")
    if management := request.object("context_management"):
        _keeps_all(management)
    request.one_of("service_tier", ("auto", "standard_only"), "leave it out")
    request.one_of("speed", ("standard",), "leave it out")
    request.end(HINTS)
    if messages and messages[-1]["role"] == "assistant":
        # The agent has begun the answer; vLLM and SGLang go on in that very message.
        chat |= {"continue_final_message": True, "add_generation_prompt": False}
    return {name: value for name, value in chat.items() if value is not None}


def _system(system: Any) -> Iterator[dict[str, Any]]:
    if isinstance(system, list):
        system = [block for block in system if not _is_billing(block)]
    if system:
        yield {"role": "system", "content": _content(system, "system")}


def _is_billing(block: Any) -> bool:
    return isinstance(block, dict) and str(block.get("text")).startswith(BILLING)


def _message(message: Fields, referred: set[str]) -> list[dict[str, Any]]:
    role = message.one_of("role", ("user", "assistant", "system"), "see 'messages'")
    content = message.any("content")
    message.end()
    path = message.at("content")
    if role is None or content is None:
        refuse(message.path, "a message needs 'role' and 'content'")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if role == "assistant":
        return [_assistant(content, path)]
    return _user(content, path, role, referred)


def _user(content: Any, path: str, role: str, referred: set[str]) -> list[dict[str, Any]]:
    """Results of tools are messages of their own in chat completions; the order stays."""
    messages: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []

    def close() -> None:
        if parts:
            messages.append({"role": role, "content": _joined(parts.copy())})
            parts.clear()

    for block in _blocks(content, path):
        kind = block.need("type", str)
        if kind == "tool_result":
            close()
            messages.append(_tool_result(block, referred))
        else:
            parts.append(_part(block, kind))
    close()
    return messages


def _tool_result(block: Fields, referred: set[str]) -> dict[str, Any]:
    call_id, content = block.need("tool_use_id", str), block.any("content")
    block.pass_over("cache_control", "is_error")
    block.end()
    text = "" if content is None else _content(content, block.at("content"), referred)
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def _assistant(content: Any, path: str) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for block in _blocks(content, path):
        kind = block.need("type", str)
        if kind == "tool_use":
            function = {"name": block.need("name", str), "arguments": _arguments(block)}
            calls.append({"id": block.need("id", str), "type": "function", "function": function})
            block.pass_over("cache_control")
            block.end()
        elif kind == "thinking":
            thoughts.append(block.need("thinking", str))
            block.pass_over("signature")
            block.end()
        else:
            parts.append(_part(block, kind))
    message: dict[str, Any] = {"role": "assistant", "content": _joined(parts) if parts else None}
    if calls:
        message["tool_calls"] = calls
    return with_reasoning(message, "\n".join(thoughts))


def _arguments(block: Fields) -> str:
    given = block.need("input", dict)
    invalid = given.get(INVALID_JSON) if len(given) == 1 else None
    # With the spaces that most models write, and so most likely the tokens that they sampled.
    return invalid if isinstance(invalid, str) else json.dumps(given, ensure_ascii=False)


def _content(
    content: Any, path: str, referred: set[str] | None = None
) -> str | list[dict[str, Any]]:
    """The same as one message's content.

    Args:
        referred: Gets the names of deferred tools that were found; None where there are none.
    """
    if isinstance(content, str):
        return content
    parts: list[dict[str, Any]] = []
    for block in _blocks(content, path):
        kind = block.need("type", str)
        if kind == "tool_reference" and referred is not None:
            name = block.need("tool_name", str)
            block.pass_over("cache_control")
            block.end()
            referred.add(name)
            # Anthropic shows the definition here; of chat completions, 'tools' then has it.
            parts.append({"type": "text", "text": f"{name} can be called now."})
        else:
            parts.append(_part(block, kind))
    return _joined(parts)


def _joined(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """One text is written as such, as most chat templates want it; more stay apart."""
    if not parts:
        return ""
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _blocks(content: Any, path: str) -> Iterator[Fields]:
    if not isinstance(content, list):
        refuse(path, "expected a string or a list of content blocks")
    for number, block in enumerate(content):
        yield Fields(block, f"{path}.{number}")


def _part(block: Fields, kind: str) -> dict[str, Any]:
    block.pass_over("cache_control")
    if kind == "text":
        part: dict[str, Any] = {"type": "text", "text": block.need("text", str)}
    elif kind == "image":
        source = block.object("source")
        part = {"type": "image_url", "image_url": {"url": _image_url(source, block)}}
    else:
        refuse(
            block.at("type"),
            f"the gateway cannot translate a block of type {kind!r} for the model's server; it "
            "takes text, image, tool_use, tool_result and thinking. Give what it says as text",
        )
    block.end()
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


def _tool(tool: Fields, referred: set[str]) -> dict[str, Any] | None:
    """None for a deferred tool that no result of a search has named yet."""
    tool.one_of(
        "type",
        ("custom",),
        "tools that Anthropic's servers run do not exist here; offer a function of the agent's own",
    )
    function = {
        "name": tool.need("name", str),
        "description": tool.get("description", str),
        "parameters": tool.need("input_schema", dict),
        "strict": tool.get("strict", bool),
    }
    tool.pass_over("cache_control", "eager_input_streaming")
    is_deferred = tool.get("defer_loading", bool)
    tool.end()
    if is_deferred and function["name"] not in referred:
        return None
    given = {name: value for name, value in function.items() if value is not None}
    return {"type": "function", "function": given}


def _tool_choice(choice: Fields) -> dict[str, Any]:
    kind = choice.one_of("type", ("auto", "any", "none", "tool"), "see 'tool_choice'")
    chosen: Any = {"any": "required"}.get(str(kind), kind)
    if kind == "tool":
        chosen = {"type": "function", "function": {"name": choice.need("name", str)}}
    one_only = choice.get("disable_parallel_tool_use", bool)
    choice.end()
    return {"tool_choice": chosen, "parallel_tool_calls": False if one_only else None}


def _effort_of_thinking(thinking: Fields | None) -> str | None:
    """Chat completions take no number of tokens to think in, but an effort."""
    if thinking is None:
        return None
    kind = thinking.one_of("type", ("enabled", "adaptive", "disabled"), "see 'thinking'")
    # Claude Code asks for "updates", and its subagents for "omitted". All of it comes nonetheless:
    # there is no signature to keep it in, and it has to come back with the next request.
    why = "what the model thought always comes whole"
    thinking.one_of("display", ("summarized", "updates", "omitted"), why)
    budget = thinking.need("budget_tokens", int) if kind == "enabled" else None
    thinking.end()
    if budget is None:
        return "none" if kind == "disabled" else None
    return "low" if budget < 4096 else "medium" if budget < 16384 else "high"


def _keeps_all(management: Fields) -> None:
    """Only what takes nothing out of the conversation; Claude Code sends that with every call."""
    for edit in management.objects("edits"):
        why = "the gateway takes nothing out of a conversation; shorten it in the agent"
        edit.one_of("type", ("clear_thinking_20251015",), why)
        edit.one_of("keep", ("all",), why)
        edit.end()
    management.end()


def _format(format: Fields | None) -> dict[str, Any] | None:
    if format is None:
        return None
    format.one_of("type", ("json_schema",), "give a JSON schema")
    schema = {"name": SCHEMA_NAME, "schema": format.need("schema", dict), "strict": True}
    format.end()
    return {"type": "json_schema", "json_schema": schema}
