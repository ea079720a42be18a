# pyright: standard
"""OpenAI's Responses API: what was said, and the tools, as chat completions have them."""

from collections.abc import Iterable, Sequence
from typing import Any

from agl_records.dialects.chat import joined, with_reasoning
from agl_records.dialects.fields import HOSTED_ALONE, Fields, refuse
from agl_records.dialects.responses_tools import NOT_HERE, Tool, call_of, read_tools

SEND_ALL = "send all items of the conversation in 'input'"
ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
"""``developer`` is OpenAI's newer word for it, which most chat templates do not know."""
CALLS = ("function_call", "custom_tool_call", "local_shell_call", "tool_search_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")
_MCP = ("mcp_list_tools", "mcp_approval_request", "mcp_approval_response")
FOUND = ("tool_search_output", "additional_tools")


def conversation(
    request: Fields, instructions: str | None, earlier: Sequence[Any] = ()
) -> tuple[list[dict[str, Any]], list[Tool]]:
    """Messages and tools of a request; some tools stand among the items.

    ``instructions`` are what it has under that name, and ``earlier`` are the items of the response
    that it goes on from, and of all before that.

    Raises:
        FieldError: A field is wrong, or cannot be translated.
    """
    messages = [{"role": "system", "content": instructions}] if instructions else []
    tools = read_tools(request.objects("tools"))
    has_hosted = bool(request.degraded)  # nothing else of it is left out so far
    given = request.any("input")
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        request.refuse("input", "expected a string or a list of items")
        given = []
    before = [request.within(item, f"previous_response_id.{n}") for n, item in enumerate(earlier)]
    items = [request.within(item, f"input.{n}") for n, item in enumerate(given)]
    messages += item_messages([*before, *items], tools)
    if has_hosted and not tools:
        request.refuse("tools", HOSTED_ALONE)
    return messages, tools


def item_messages(items: Iterable[Fields], tools: list[Tool]) -> list[dict[str, Any]]:
    """Messages of items, those of an answer too; ``tools`` gets those that stand among them."""
    messages: list[dict[str, Any]] = []
    turn = _Turn(messages, tools)
    for item in items:
        turn.add(item)
    turn.close()
    return messages


class _Turn:
    """Puts items together that were one message of the model: its thoughts, text and tool calls.

    Chat templates write them as one message, and so the ids of the next prompt begin with those
    of this one. Finished ones go to ``messages``, tools that are offered on the way to ``tools``.
    """

    def __init__(self, messages: list[dict[str, Any]], tools: list[Tool]) -> None:
        self._messages = messages
        self._tools = tools
        self._thought = ""
        self._content: Any = None
        self._calls: list[dict[str, Any]] = []
        self._shell_calls: dict[str, str] = {}
        """Id of an item -> that of its call, as OpenAI's results of a shell may name either."""

    def add(self, item: Fields) -> None:
        kind = item.get("type", str) or "message"
        item_id = item.get("id", str) or ""
        if kind == "reasoning" and item.is_recorded:
            return
        if kind == "reasoning":
            self.close()
            self._thought = _thought(item)
        elif kind in CALLS:
            self._calls.append(call := call_of(item, kind))
            self._shell_calls[item_id] = call["id"]
        elif kind in _OUTPUTS:
            item.pass_over("name")
            self._add_result(item, item_id, _content(item, "output"))
        elif kind in FOUND:
            self._offer(item, kind)
        elif kind == "message":
            self._add_message(item)
        elif (kind.endswith(("_call", "_call_output")) or kind in _MCP) and not item.is_recorded:
            note = item.degrade(f"an item of type {kind!r}", "only OpenAI's models take it")
            self.close()
            role = "user" if kind.endswith("_output") else "assistant"
            self._messages.append({"role": role, "content": note})
            return
        else:
            item.refuse(
                "type",
                f"the gateway cannot translate an item of type {kind!r} for the model's server; it "
                f"takes message, reasoning, {', '.join((*CALLS, *_OUTPUTS, *FOUND))}. {SEND_ALL}",
            )
        item.end("status")

    def _add_result(self, item: Fields, item_id: str, content: Any) -> None:
        self.close()
        call_id = item.get("call_id", str) or self._shell_calls.get(item_id, item_id)
        self._messages.append({"role": "tool", "tool_call_id": call_id, "content": content})

    def _offer(self, item: Fields, kind: str) -> None:
        """Tools that are offered from here on; a search of the agent's has found some of them."""
        found = read_tools(item.objects("tools"), found=True)
        known = {tool.function["name"] for tool in self._tools}
        self._tools += [tool for tool in found if tool.function["name"] not in known]
        if kind == "tool_search_output":
            item.one_of("execution", ("client",), NOT_HERE)
            # OpenAI shows the definitions here; of chat completions, 'tools' then has them.
            names = ", ".join(tool.function["name"] for tool in found)
            self._add_result(item, "", f"{names} can be called now." if names else "Nothing found.")
        else:
            item.pass_over("role")

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
    for part in item.objects("summary"):
        thoughts.append(part.need("text", str))
        item.degrade("a thought", "the model gets the summary of it")
    if item.any("encrypted_content") and not thoughts:
        thoughts.append(item.degrade("a thought", "only its own server can read it"))
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
        if part.get("annotations", list) and not part.is_recorded:
            part.degrade("annotations", "chat completions have none")
    elif kind == "refusal":
        translated = {"type": "text", "text": part.need("refusal", str)}
    elif kind == "input_image":
        image = {"url": part.need("image_url", str), "detail": part.get("detail", str)}
        given = {name: value for name, value in image.items() if value is not None}
        translated = {"type": "image_url", "image_url": given}
    elif kind in ("input_file", "input_audio") and not part.is_recorded:
        note = part.degrade(f"a part of type {kind!r}", "the model's server takes texts and images")
        return {"type": "text", "text": note}
    else:
        part.refuse(
            "type",
            f"the gateway cannot translate a part of type {kind!r} for the model's server; it "
            "takes input_text, input_image, output_text and refusal. Give what it says as text",
        )
        return None
    part.end(
        hints={"file_id": "the gateway keeps no files; send 'image_url', which may be a data URL"}
    )
    return translated
