# pyright: standard
"""OpenAI's Responses API: what was said, and the tools, as chat completions have them."""

from collections.abc import Iterable
from typing import Any

from agl_learning.dialects.chat import joined, tool_call, with_reasoning
from agl_learning.dialects.fields import Fields, refuse

SEND_ALL = "the gateway keeps no conversations: send all items of the conversation in 'input'"
ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
"""``developer`` is OpenAI's newer word for it, which most chat templates do not know."""


def conversation(request: Fields, instructions: str | None) -> list[dict[str, Any]]:
    """Messages of a request.

    Args:
        request: As it came.
        instructions: What it has under that name.

    Raises:
        FieldError: A field is wrong, or cannot be translated.
    """
    messages = [{"role": "system", "content": instructions}] if instructions else []
    given = request.any("input")
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        request.refuse("input", "expected a string or a list of items")
        return messages
    items = (request.within(item, f"input.{n}") for n, item in enumerate(given))
    return [*messages, *item_messages(items)]


def item_messages(items: Iterable[Fields]) -> list[dict[str, Any]]:
    """Messages of items, those of an answer too."""
    messages: list[dict[str, Any]] = []
    turn = _Turn(messages)
    for item in items:
        turn.add(item)
    turn.close()
    return messages


def tools(request: Fields) -> list[dict[str, Any]]:
    """The functions that a request offers, each as it has them.

    Raises:
        FieldError: A field is wrong, or cannot be translated.
    """
    return [tool for one in request.objects("tools") if (tool := _tool(one)) is not None]


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
        if kind == "reasoning" and item.is_recorded:
            return
        if kind == "reasoning":
            self.close()
            self._thought = _thought(item)
        elif kind == "function_call":
            name, arguments = item.need("name", str), item.need("arguments", str, "{}")
            self._calls.append(tool_call(item.need("call_id", str, ""), name, arguments))
        elif kind == "function_call_output":
            self.close()
            self._messages.append(
                {
                    "role": "tool",
                    "tool_call_id": item.need("call_id", str, ""),
                    "content": _content(item, "output"),
                }
            )
        elif kind == "message":
            self._add_message(item)
        else:
            item.refuse(
                "type",
                f"the gateway cannot translate an item of type {kind!r} for the model's server; it "
                f"takes message, reasoning, function_call and function_call_output. {SEND_ALL}",
            )
        item.end()

    def _add_message(self, item: Fields) -> None:
        role = item.one_of("role", tuple(ROLES), "see 'input'")
        if role is None:
            refuse(item.at("role"), f"is missing; expected {' or '.join(ROLES)}")
        content = _content(item, "content")
        item.pass_over("phase")
        if role == "assistant":
            if self._content is not None or self._calls:
                self.close()
            self._content = content
        else:
            self.close()
            self._messages.append({"role": ROLES.get(role, role), "content": content})

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


def _content(owner: Fields, name: str) -> str | list[dict[str, Any]] | None:
    content = owner.any(name)
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        owner.refuse(name, "expected a string or a list of parts")
        return None
    given = enumerate(content)
    parts = [_part(owner.within(part, f"{name}.{number}")) for number, part in given]
    return joined([part for part in parts if part is not None])


def _part(part: Fields) -> dict[str, Any] | None:
    kind = part.need("type", str)
    if kind in ("input_text", "output_text", "text"):
        translated: dict[str, Any] = {"type": "text", "text": part.need("text", str)}
        part.pass_over("logprobs")
        if part.get("annotations", list):
            part.refuse("annotations", "chat completions have none; leave it out")
    elif kind == "refusal":
        translated = {"type": "text", "text": part.need("refusal", str)}
    elif kind == "input_image":
        image = {"url": part.need("image_url", str), "detail": part.get("detail", str)}
        given = {name: value for name, value in image.items() if value is not None}
        translated = {"type": "image_url", "image_url": given}
    else:
        part.refuse(
            "type",
            f"the gateway cannot translate a part of type {kind!r} for the model's server; it "
            "takes input_text, input_image, output_text and refusal. Give what it says as text",
        )
        return None
    part.end({"file_id": "the gateway keeps no files; send 'image_url', which may be a data URL"})
    return translated


def _tool(tool: Fields) -> dict[str, Any] | None:
    """None for one that OpenAI's servers run."""
    kind = tool.one_of(
        "type",
        ("function",),
        "tools that OpenAI's servers run do not exist here; offer a function of the agent's own",
    )
    if kind not in (None, "function"):
        return None
    function = {
        "type": "function",
        "name": tool.need("name", str),
        "description": tool.get("description", str),
        "parameters": tool.get("parameters", dict),
        "strict": tool.get("strict", bool),
    }
    tool.pass_over("output_schema")
    if tool.get("defer_loading", bool):
        tool.refuse("defer_loading", "offer the tool, or leave it out of 'tools'")
    tool.end()
    return {name: value for name, value in function.items() if value is not None}
