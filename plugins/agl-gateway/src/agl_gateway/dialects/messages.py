"""Anthropic's ``/v1/messages``: a request, as the chat completion that asks for the same."""

from typing import Any

from agl_gateway.dialect import TOKENIZE, Exchange, dumps
from agl_gateway.dialects.messages_answer import MessageStream, error_body
from agl_gateway.dialects.translated import Translated, TranslatedDialect
from agl_gateway.normal_form import read_object
from agl_gateway.response_history import ResponseHistory
from agl_records.dialects.fields import Fields
from agl_records.dialects.messages import conversation

HINTS = {
    "mcp_servers": "offer the tools of the server in 'tools'",
    "container": "the model's server runs no code",
}
SCHEMA_NAME = "answer"
"""Chat completions want a name for the schema of an answer, which Anthropic's do not have."""


class Messages(TranslatedDialect):
    """Anthropic's messages."""

    error_body = staticmethod(error_body)

    def translate(self, request: Fields, history: ResponseHistory, attempt_id: str) -> Exchange:
        return Translated(to_chat(request, request.need("max_tokens", int)), MessageStream())


class CountTokens(Messages):
    """``/v1/messages/count_tokens``, which is no model call."""

    operation = ""
    path = TOKENIZE

    def translate(self, request: Fields, history: ResponseHistory, attempt_id: str) -> Exchange:
        chat = to_chat(request)
        body = dumps({name: chat[name] for name in _COUNTED if name in chat})
        return Exchange(body, read_object(body))


_COUNTED = ("model", "messages", "tools", "continue_final_message", "add_generation_prompt")


def to_chat(request: Fields, max_tokens: int | None = None) -> dict[str, Any]:
    """The chat completion request.

    Raises:
        FieldError: A field is wrong, or cannot be translated.
    """
    messages, tools = conversation(request)
    chat: dict[str, Any] = {"model": request.any("model"), "messages": messages}
    chat["max_completion_tokens"] = max_tokens
    for name, kind in (("temperature", float), ("top_p", float), ("top_k", int), ("stream", bool)):
        chat[name] = request.get(name, kind)
    chat["stop"] = request.get("stop_sequences", list)
    if metadata := request.object("metadata"):
        chat["user"] = metadata.get("user_id", str)
        metadata.end()
    chat["tools"] = tools or None
    if choice := request.object("tool_choice"):
        chat |= _tool_choice(choice, tools)
    chat["reasoning_effort"] = _effort_of_thinking(request.object("thinking"))
    if output := request.object("output_config"):
        chat["reasoning_effort"] = output.get("effort", str) or chat["reasoning_effort"]
        chat["response_format"] = _format(output.object("format"))
        output.end()
    if management := request.object("context_management"):
        _keeps_all(management)
    request.one_of("service_tier", ("auto", "standard_only"), "leave it out")
    request.one_of("speed", ("standard",), "leave it out")
    request.end("cache_control", hints=HINTS)
    if messages and messages[-1]["role"] == "assistant":
        # The agent has begun the answer; vLLM and SGLang go on in that very message.
        chat |= {"continue_final_message": True, "add_generation_prompt": False}
    return {name: value for name, value in chat.items() if value is not None}


def _tool_choice(choice: Fields, tools: list[dict[str, Any]]) -> dict[str, Any]:
    kind = choice.one_of("type", ("auto", "any", "none", "tool"), "see 'tool_choice'")
    chosen: Any = {"any": "required"}.get(str(kind), kind)
    if kind == "tool":
        name = choice.need("name", str)
        chosen = {"type": "function", "function": {"name": name}}
        if choice.degraded and name not in [tool["function"]["name"] for tool in tools]:
            choice.degrade("the choice of a tool", "that tool is left out")
            chosen = "auto"
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
