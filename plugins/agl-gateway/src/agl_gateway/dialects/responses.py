"""OpenAI's ``/v1/responses``: a request, as the chat completion that asks for the same."""

from typing import Any

from agl_gateway.dialect import Dialect
from agl_gateway.dialects.fields import Fields, read_json, refuse
from agl_gateway.dialects.responses_answer import Echo, ResponseExchange
from agl_gateway.dialects.translated import error_message, with_reasoning
from agl_gateway.errors import RefusedError, error_body

SEND_ALL = "the gateway keeps no conversations: send all items of the conversation in 'input'"
HINTS = {
    "previous_response_id": SEND_ALL,
    "conversation": SEND_ALL,
    "prompt": "the gateway keeps no prompts: send the text in 'instructions' or 'input'",
    "context_management": "shorten the conversation in the agent",
    "max_tool_calls": "the agent runs the tools, so it can count the calls",
}
ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
"""``developer`` is OpenAI's newer word for it, which most chat templates do not know."""
LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"


class Responses(Dialect):
    """The Responses API. The backend is asked for a chat completion, and that is recorded."""

    def read(self, body: bytes) -> ResponseExchange:
        request = Fields(read_json(body))
        echo = Echo()
        return ResponseExchange(to_chat(request, echo), echo)

    def error(self, refused: RefusedError) -> bytes:
        message = error_message(refused.backend_body, refused.message)
        return error_body(refused.status, message, refused.code)


def to_chat(request: Fields, echo: Echo) -> dict[str, Any]:
    """The chat completion request.

    Args:
        request: As it came.
        echo: Takes what the answer repeats of the request.

    Raises:
        RefusedError: A field is wrong, or cannot be translated.
    """
    chat: dict[str, Any] = {"model": request.any("model"), "messages": _messages(request, echo)}
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
    tools = [_tool(tool) for tool in request.objects("tools")]
    if tools:
        chat["tools"] = [
            {
                "type": "function",
                "function": {key: tool[key] for key in tool if key != "type"},
            }
            for tool in tools
        ]
        echo.set("tools", tools)
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


def _tool(tool: Fields) -> dict[str, Any]:
    tool.one_of(
        "type",
        ("function",),
        "tools that OpenAI's servers run do not exist here; offer a function of the agent's own",
    )
    function = {
        "type": "function",
        "name": tool.need("name", str),
        "description": tool.get("description", str),
        "parameters": tool.get("parameters", dict),
        "strict": tool.get("strict", bool),
    }
    tool.pass_over("output_schema")
    if tool.get("defer_loading", bool):
        refuse(tool.at("defer_loading"), "offer the tool, or leave it out of 'tools'")
    tool.end()
    return {name: value for name, value in function.items() if value is not None}


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


def _messages(request: Fields, echo: Echo) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    instructions = request.get("instructions", str)
    echo.set("instructions", instructions)
    if instructions:
        messages.append({"role": "system", "content": instructions})
    given = request.any("input")
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        refuse("input", "expected a string or a list of items")
    turn = _Turn(messages)
    for number, item in enumerate(given):
        turn.add(Fields(item, f"input.{number}"))
    turn.close()
    return messages


class _Turn:
    """Puts items together that were one message of the model: its thoughts, text and tool calls.

    Chat templates write them as one message, and so the ids of the next prompt begin with those
    of this one.

    Args:
        messages: Where finished messages go.
    """

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self._messages = messages
        self._thought = ""
        self._content: Any = None
        self._calls: list[dict[str, Any]] = []

    def add(self, item: Fields) -> None:
        kind = item.get("type", str) or "message"
        item.pass_over("id", "status")
        if kind == "reasoning":
            self.close()
            self._thought = _thought(item)
        elif kind == "function_call":
            function = {"name": item.need("name", str), "arguments": item.need("arguments", str)}
            self._calls.append(
                {"id": item.need("call_id", str), "type": "function", "function": function}
            )
        elif kind == "function_call_output":
            self.close()
            self._messages.append(
                {
                    "role": "tool",
                    "tool_call_id": item.need("call_id", str),
                    "content": _content(item.any("output"), item.at("output")),
                }
            )
        elif kind == "message":
            self._add_message(item)
        else:
            refuse(
                item.at("type"),
                f"the gateway cannot translate an item of type {kind!r} for the model's server; it "
                f"takes message, reasoning, function_call and function_call_output. {SEND_ALL}",
            )
        item.end()

    def _add_message(self, item: Fields) -> None:
        role = item.one_of("role", tuple(ROLES), "see 'input'")
        if role is None:
            refuse(item.at("role"), f"is missing; expected {' or '.join(ROLES)}")
        content = _content(item.any("content"), item.at("content"))
        item.pass_over("phase")
        if role == "assistant":
            if self._content is not None or self._calls:
                self.close()
            self._content = content
        else:
            self.close()
            self._messages.append({"role": ROLES[role], "content": content})

    def close(self) -> None:
        """The message of the model is complete, if there is one."""
        if self._thought or self._content is not None or self._calls:
            message = {"role": "assistant", "content": self._content}
            if self._calls:
                message["tool_calls"] = self._calls
            self._messages.append(with_reasoning(message, self._thought))
        self._thought, self._content, self._calls = "", None, []


def _thought(item: Fields) -> str:
    thoughts: list[str] = []
    for part in item.objects("content"):
        part.one_of("type", ("reasoning_text",), "see 'reasoning'")
        thoughts.append(part.need("text", str))
        part.end()
    if item.get("summary", list):
        refuse(item.at("summary"), "a summary is not what the model thought; send 'content'")
    item.end({"encrypted_content": "only its own server can read it; send 'content'"})
    return "\n".join(thoughts)


def _content(content: Any, path: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        refuse(path, "expected a string or a list of parts")
    parts = [_part(Fields(part, f"{path}.{number}")) for number, part in enumerate(content)]
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _part(part: Fields) -> dict[str, Any]:
    kind = part.need("type", str)
    if kind in ("input_text", "output_text", "text"):
        translated: dict[str, Any] = {"type": "text", "text": part.need("text", str)}
        part.pass_over("logprobs")
        if part.get("annotations", list):
            refuse(part.at("annotations"), "chat completions have none; leave it out")
    elif kind == "refusal":
        translated = {"type": "text", "text": part.need("refusal", str)}
    elif kind == "input_image":
        image = {"url": part.need("image_url", str), "detail": part.get("detail", str)}
        given = {name: value for name, value in image.items() if value is not None}
        translated = {"type": "image_url", "image_url": given}
    else:
        refuse(
            part.at("type"),
            f"the gateway cannot translate a part of type {kind!r} for the model's server; it "
            "takes input_text, input_image, output_text and refusal. Give what it says as text",
        )
    part.end({"file_id": "the gateway keeps no files; send 'image_url', which may be a data URL"})
    return translated
