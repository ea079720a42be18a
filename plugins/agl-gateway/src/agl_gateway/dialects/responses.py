"""OpenAI's ``/v1/responses``: a request, as the chat completion that asks for the same."""

from typing import Any

from agl_gateway.dialects.responses_answer import Echo, ResponseStream
from agl_gateway.dialects.translated import Translated, TranslatedDialect
from agl_gateway.errors import error_body
from agl_learning.dialects.chat import as_chat
from agl_learning.dialects.fields import Fields, refuse
from agl_learning.dialects.responses import SEND_ALL, conversation, tools

HINTS = {
    "previous_response_id": SEND_ALL,
    "conversation": SEND_ALL,
    "prompt": "the gateway keeps no prompts: send the text in 'instructions' or 'input'",
    "context_management": "shorten the conversation in the agent",
    "max_tool_calls": "the agent runs the tools, so it can count the calls",
}
LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"


class Responses(TranslatedDialect):
    """The Responses API."""

    def translate(self, request: Fields) -> Translated:
        echo = Echo()
        return Translated(to_chat(request, echo), ResponseStream(echo))

    def error_of(self, status: int, message: str, code: str | None) -> bytes:
        return error_body(status, message, code)


def to_chat(request: Fields, echo: Echo) -> dict[str, Any]:
    """The chat completion request.

    Args:
        request: As it came.
        echo: Takes what the answer repeats of the request.

    Raises:
        FieldError: A field is wrong, or cannot be translated.
    """
    instructions = request.get("instructions", str)
    echo.set("instructions", instructions)
    messages = conversation(request, instructions)
    chat: dict[str, Any] = {"model": request.any("model"), "messages": messages}
    for name, to, kind in (
        ("temperature", "temperature", float),
        ("top_p", "top_p", float),
        ("max_output_tokens", "max_completion_tokens", int),
        ("parallel_tool_calls", "parallel_tool_calls", bool),
        ("user", "user", str),
        ("safety_identifier", "safety_identifier", str),
    ):
        chat[to] = value = request.get(name, kind)
        echo.set(name, value)
    chat["stream"] = request.get("stream", bool)
    _translate_tools(request, chat, echo)
    _translate_output(request, chat, echo)
    echo.set("metadata", request.get("metadata", dict))
    _refuse_state(request)
    request.pass_over("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options")
    request.end(HINTS)
    return {name: value for name, value in chat.items() if value is not None}


def _refuse_state(request: Fields) -> None:
    """What would need somebody who remembers, or who works on after the answer."""
    for name in ("store", "background"):
        if request.get(name, bool):
            refuse(name, f"the gateway stores no responses; leave '{name}' out, or send false")
    request.one_of("truncation", ("disabled",), "shorten the conversation in the agent")
    request.one_of("service_tier", ("auto", "default"), "leave it out")
    if options := request.object("stream_options"):
        if options.get("include_obfuscation", bool):
            refuse(options.at("include_obfuscation"), "the gateway does not obfuscate streams")
        options.end()


def _translate_tools(request: Fields, chat: dict[str, Any], echo: Echo) -> None:
    if offered := tools(request):
        chat["tools"] = [as_chat(tool) for tool in offered]
        echo.set("tools", offered)
    choice = request.any("tool_choice")
    echo.set("tool_choice", choice)
    if isinstance(choice, dict):
        fields = Fields(choice, "tool_choice")
        fields.one_of("type", ("function",), "choose one of the functions in 'tools'")
        choice = {"type": "function", "function": {"name": fields.need("name", str)}}
        fields.end()
    elif choice not in (None, "auto", "none", "required"):
        refuse("tool_choice", f"got {choice!r}, expected auto, none, required or a function")
    chat["tool_choice"] = choice


def _translate_output(request: Fields, chat: dict[str, Any], echo: Echo) -> None:
    for number, included in enumerate(request.get("include", list) or ()):
        if included == LOGPROBS:
            chat["logprobs"] = echo.with_logprobs = True
        elif included != ENCRYPTED:  # reasoning comes back in plain text, which serves as well
            refuse(f"include.{number}", f"{included!r} does not exist here; leave it out")
    chat["top_logprobs"] = top = request.get("top_logprobs", int)
    if top:
        chat["logprobs"] = echo.with_logprobs = True
    if reasoning := request.object("reasoning"):
        chat["reasoning_effort"] = effort = reasoning.get("effort", str)
        echo.set("reasoning", {"effort": effort, "summary": None})
        hint = "what the model thought comes whole, in the 'content' of reasoning items"
        reasoning.end({"summary": hint, "generate_summary": hint})
    if text := request.object("text"):
        chat["verbosity"] = text.get("verbosity", str)
        format = text.any("format")
        if format is not None:
            echo.set("text", {"format": format})
            chat["response_format"] = _format(Fields(format, text.at("format")))
        text.end()


def _format(format: Fields) -> dict[str, Any] | None:
    kind = format.one_of("type", ("text", "json_object", "json_schema"), "see 'text.format'")
    if kind != "json_schema":
        format.end()
        return None if kind == "text" else {"type": kind}
    schema = {
        "name": format.need("name", str),
        "schema": format.need("schema", dict),
        "description": format.get("description", str),
        "strict": format.get("strict", bool),
    }
    format.end()
    given = {name: value for name, value in schema.items() if value is not None}
    return {"type": "json_schema", "json_schema": given}
