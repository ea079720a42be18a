"""OpenAI's ``/v1/responses``: a request, as the chat completion that asks for the same."""

from typing import Any

from agl_gateway.dialects.responses_answer import Echo, ResponseStream
from agl_gateway.dialects.translated import Translated, TranslatedDialect
from agl_gateway.response_history import ResponseHistory
from agl_records.dialects.fields import Fields, refuse
from agl_records.dialects.responses import SEND_ALL, conversation
from agl_records.dialects.responses_tools import SEARCH, SHELL, chat_name, is_hosted

HINTS = {
    "conversation": f"the gateway has no conversations: give 'previous_response_id', or {SEND_ALL}",
    "prompt": "the gateway keeps no prompts: send the text in 'instructions' or 'input'",
    "context_management": "shorten the conversation in the agent",
    "max_tool_calls": "the agent runs the tools, so it can count the calls",
}
LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"


class Responses(TranslatedDialect):
    """The Responses API."""

    def translate(self, request: Fields, history: ResponseHistory, attempt_id: str) -> Translated:
        echo = Echo()
        given = request.peek("input")
        items = given if isinstance(given, list) else [{"role": "user", "content": given}]
        before = request.get("previous_response_id", str)
        echo.set("previous_response_id", before)
        chat = to_chat(request, echo, history.items(attempt_id, before) if before else [])

        def keep(answer: dict[str, Any]) -> None:
            history.keep(attempt_id, answer["id"], before, [*items, *answer["output"]])

        stores = _stores(request, bool(attempt_id))
        echo.set("store", stores)
        request.end(hints=HINTS)
        return Translated(chat, ResponseStream(echo, keep if stores else None))


def to_chat(request: Fields, echo: Echo, earlier: list[Any]) -> dict[str, Any]:
    """The chat completion request.

    Args:
        request: As it came.
        echo: Takes what the answer repeats of the request, and the tools.
        earlier: Items of the response that it goes on from, and of all before that.

    Raises:
        FieldError: A field is wrong, or cannot be translated.
    """
    instructions = request.get("instructions", str)
    echo.set("instructions", instructions)
    echo.set("tools", request.peek("tools"))
    messages, tools = conversation(request, instructions, earlier)
    echo.tools = {tool.function["name"]: tool for tool in tools}
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
    chat["tools"] = [tool.as_chat() for tool in tools] or None
    chat["tool_choice"] = _tool_choice(request, echo, chat)
    _translate_output(request, chat, echo)
    echo.set("metadata", request.get("metadata", dict))
    _refuse_services(request)
    request.pass_over("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options")
    request.pass_over("client_metadata")  # Codex's, for OpenAI's accounts
    return {name: value for name, value in chat.items() if value is not None}


def _stores(request: Fields, has_attempt: bool) -> bool:
    """Whether later calls may go on from this response; as with OpenAI, unless it says no."""
    asked = request.get("store", bool)
    if asked and not has_attempt:
        refuse("store", "the gateway keeps responses for the calls of their attempt, and this call "
               "is that of none; leave 'store' out, or send false")  # fmt: skip
    return has_attempt and asked is not False


def _refuse_services(request: Fields) -> None:
    """What would need somebody who works on after the answer, or who shortens or hides it."""
    if request.get("background", bool):
        refuse("background", "the gateway answers while the agent waits; leave it out")
    request.one_of("truncation", ("disabled",), "shorten the conversation in the agent")
    request.one_of("service_tier", ("auto", "default"), "leave it out")
    if options := request.object("stream_options"):
        if options.get("include_obfuscation", bool):
            refuse(options.at("include_obfuscation"), "the gateway does not obfuscate streams")
        options.end()


def _tool_choice(request: Fields, echo: Echo, chat: dict[str, Any]) -> Any:
    choice = request.any("tool_choice")
    echo.set("tool_choice", choice)
    if isinstance(choice, dict):
        fields = request.within(choice, "tool_choice")
        if is_hosted(fields):
            fields.degrade("the choice of a tool", "only OpenAI's servers run it")
            return None
        if choice.get("type") == "allowed_tools":
            return _allowed(fields, chat)
        kinds = ("function", "custom", SHELL, SEARCH)
        fields.one_of("type", kinds, "choose one of the agent's own tools in 'tools'")
        name = _function_of(fields, choice.get("type"))
        fields.end()
        return {"type": "function", "function": {"name": name}}
    if choice not in (None, "auto", "none", "required"):
        refuse("tool_choice", f"got {choice!r}, expected auto, none, required or a tool")
    return choice


def _function_of(chosen: Fields, kind: str | None) -> str:
    """The function that a tool is to the model."""
    if kind in (SHELL, SEARCH):
        return kind
    return chat_name(chosen.need("name", str), chosen.get("namespace", str))


def _allowed(choice: Fields, chat: dict[str, Any]) -> Any:
    """The model sees the allowed tools and no others."""
    choice.pass_over("type")
    allowed = list(choice.objects("tools"))
    names = {_function_of(tool, tool.peek("type")) for tool in allowed if not is_hosted(tool)}
    tools = [tool for tool in chat["tools"] or () if tool["function"]["name"] in names]
    choice.degrade("tools that are not allowed", "chat completions offer only those that are")
    chat["tools"] = tools or None
    mode = choice.one_of("mode", ("auto", "required"), "see 'tool_choice'")
    if not tools and (mode == "required" or any(map(is_hosted, allowed))):
        choice.refuse("tools", "none of them is a tool in 'tools' that the agent runs; name one")
    return mode if tools else None


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
        # Nobody is here to sum up. What the model thought comes whole, in 'content', as it has to
        # come back with the next request. The answer says "summary": null.
        for name in ("summary", "generate_summary"):
            reasoning.one_of(name, ("auto", "concise", "detailed"), "leave it out")
        reasoning.one_of("context", ("auto", "all_turns"), "leave thoughts out of 'input'")
        reasoning.end()
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
