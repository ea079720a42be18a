# pyright: standard
"""The Responses API's tools that the agent runs, each as a function of chat completions.

Functions stay functions. A tool that takes free text, a shell of the agent's, its search for tools
and what stands in a namespace are not known to chat completions: the model gets a function, and its
call becomes the item that the agent expects. There and back stand beside each other here, since the
next prompt has to begin with what the model has written.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agl.utils.json_values import parse_json
from agl_records.dialects.chat import as_chat, tool_call
from agl_records.dialects.fields import Fields

HOSTED = ("web_search", "file_search", "code_interpreter", "image_generation", "mcp")
"""Beginnings of the types of tools that OpenAI's servers run."""
NOT_HERE = "only OpenAI's models and servers know it; offer a function of the agent's own"
INPUT = "input"
"""The only parameter of a function that stands for a tool of free text."""
SHELL = "local_shell"
SEARCH = "tool_search"
TEXT = {"type": "string"}
_FREE_TEXT = {
    "type": "object",
    "properties": {INPUT: {**TEXT, "description": "All of the tool's input, as one text."}},
    "required": [INPUT],
    "additionalProperties": False,
}
_SHELL_DESCRIPTION = "Runs a command on the user's machine."
_SHELL_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "command": {
            "type": "array",
            "items": TEXT,
            "description": "The program and its arguments.",
        },
        "working_directory": TEXT,
        "timeout_ms": {"type": "integer"},
        "env": {"type": "object", "additionalProperties": TEXT},
        "user": TEXT,
    },
    "required": ["command"],
    "additionalProperties": False,
}
_SHELL_OPTIONS = {"working_directory": str, "timeout_ms": int, "env": dict, "user": str}


@dataclass(frozen=True)
class Tool:
    """A tool of the agent.

    Args:
        kind: Its type in the Responses API.
        name: As the agent knows it.
        function: What the model gets: ``name``, ``description``, ``parameters``, ``strict``.
        namespace: Where it stands; empty for most.
    """

    kind: str
    name: str
    function: Mapping[str, Any]
    namespace: str = ""

    def as_chat(self) -> dict[str, Any]:
        """Its definition in chat completions."""
        return as_chat(self.function)

    def item(self, call_id: str, arguments: str) -> dict[str, Any]:
        """The item of a call. What the model wrote is in it, whether it fits the tool or not."""
        given = _read(arguments)
        named = {"call_id": call_id, "name": self.name} | self.where()
        if self.kind == "custom":
            text = given.get(INPUT) if isinstance(given, dict) and len(given) == 1 else None
            text = text if isinstance(text, str) else arguments
            return {"type": "custom_tool_call", **named, "input": text}
        if self.kind == SEARCH:
            search = given if isinstance(given, dict) else arguments
            head = {"type": "tool_search_call", "call_id": call_id, "execution": "client"}
            return {**head, "arguments": search}
        if self.kind == SHELL and _is_command(given):
            action = {"type": "exec", "env": {}, **given}
            return {"type": "local_shell_call", "call_id": call_id, "action": action}
        return {"type": "function_call", **named, "arguments": arguments}

    def where(self) -> dict[str, str]:
        """``namespace``, where it has one."""
        return {"namespace": self.namespace} if self.namespace else {}


def _read(arguments: str) -> Any:
    try:
        return parse_json(arguments)
    except ValueError:
        return None


def _is_command(given: Any) -> bool:
    if not isinstance(given, dict) or given.keys() - _SHELL_PARAMETERS["properties"]:
        return False
    command = given.get("command")
    return isinstance(command, list) and all(isinstance(word, str) for word in command)


def chat_name(name: str, namespace: str | None) -> str:
    """A function's name in chat completions, which have no namespaces."""
    return f"{namespace}__{name}" if namespace else name


def call_of(item: Fields, kind: str) -> dict[str, Any]:
    """The tool call of an item that an agent sends back: ``Tool.item`` undone.

    Raises:
        FieldError: A field is wrong, or cannot be translated.
    """
    call_id = item.need("call_id", str, "")
    if kind == "local_shell_call":
        name, arguments = SHELL, _shell_arguments(item)
    elif kind == "tool_search_call":
        item.one_of("execution", ("client",), NOT_HERE)
        name, arguments = SEARCH, item.any("arguments")
    else:
        name = chat_name(item.need("name", str), item.get("namespace", str))
        if kind == "custom_tool_call":
            arguments = {INPUT: item.need("input", str, "")}
        else:
            arguments = item.need("arguments", str, "{}")
    if not isinstance(arguments, str):
        # With the spaces that most models write, and so most likely the tokens that they sampled.
        arguments = json.dumps(arguments or {}, ensure_ascii=False)
    return tool_call(call_id, name, arguments)


def _shell_arguments(item: Fields) -> dict[str, Any]:
    action = item.object("action")
    if action is None:
        item.refuse("action", "is missing; expected {'type': 'exec', 'command': [...]}")
        return {}
    action.one_of("type", ("exec",), "see 'local_shell'")
    given: dict[str, Any] = {"command": action.need("command", list, [])}
    for name, kind in _SHELL_OPTIONS.items():
        if value := action.get(name, kind):
            given[name] = value
    action.end()
    return given


def read_tools(offered: Iterable[Fields], found: bool = False) -> list[Tool]:
    """The tools that are offered.

    Those whose loading is deferred are offered once a search has ``found`` them.

    Raises:
        FieldError: A field is wrong, or it is a tool that somebody else would have to run.
    """
    tools: dict[str, Tool] = {}
    for one in offered:
        for tool in _tools(one, found):
            known = tools.setdefault(name := tool.function["name"], tool)
            if (known.kind, known.name) != (tool.kind, tool.name):
                one.refuse("name", f"the model would see two tools {name!r}; rename one of them")
    return list(tools.values())


def is_hosted(tool: Fields) -> bool:
    """Whether OpenAI's servers would run it."""
    return str(tool.peek("type")).startswith(HOSTED)


def _tools(tool: Fields, found: bool, namespace: str = "") -> list[Tool]:
    allowed = ("function", "custom", *(() if namespace else (SHELL, SEARCH, "namespace")))
    if is_hosted(tool) and not tool.is_recorded:
        tool.degrade(f"a tool of type {tool.peek('type')!r}", "only OpenAI's servers run it")
        return []
    kind = tool.one_of("type", allowed, NOT_HERE) or "function"
    if kind not in allowed:
        return []  # recorded: one that OpenAI's servers ran
    if kind == "namespace":
        return _namespace(tool, found)
    name = kind if kind in (SHELL, SEARCH) else tool.need("name", str)
    function: dict[str, Any] = {"name": chat_name(name, namespace)}
    function["description"] = tool.get("description", str)
    if kind == SEARCH:
        tool.one_of("execution", ("client",), NOT_HERE)
    if kind == SHELL:
        function |= {"description": _SHELL_DESCRIPTION, "parameters": _SHELL_PARAMETERS}
    elif kind == "custom":
        texts = (function["description"], _grammar(tool.object("format")))
        function |= {"description": _paragraphs(*texts), "parameters": _FREE_TEXT}
    else:
        function["parameters"] = tool.get("parameters", dict)
        function["strict"] = tool.get("strict", bool)
        tool.pass_over("output_schema")
    if tool.get("defer_loading", bool) and not found:
        tool.refuse("defer_loading", "offer the tool, or leave it out of 'tools'")
    tool.end()
    given = {key: value for key, value in function.items() if value is not None}
    return [Tool(kind, name, given, namespace)]


def _namespace(space: Fields, found: bool) -> list[Tool]:
    """Its tools. What it says of them all stands before the description of the first."""
    name, said = space.need("name", str), space.get("description", str)
    tools = [each for one in space.objects("tools") for each in _tools(one, found, name)]
    space.end()
    if said and tools:
        function = dict(tools[0].function)
        function["description"] = _paragraphs(said, function.get("description"))
        tools[0] = replace(tools[0], function=function)
    return tools


def _paragraphs(*texts: str | None) -> str | None:
    return "\n\n".join(text for text in texts if text) or None


def _grammar(format: Fields | None) -> str | None:
    """What the model is told of the form of a text; no server of chat completions can force it."""
    if format is None:
        return None
    kind, said = format.one_of("type", ("text", "grammar"), "see 'format'"), None
    if kind == "grammar":
        syntax = format.one_of("syntax", ("lark", "regex"), "see 'format'")
        said = f"The input has to match this {syntax} grammar:\n{format.need('definition', str)}"
    format.end()
    return said
