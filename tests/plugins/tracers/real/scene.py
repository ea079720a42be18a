"""The task that every framework gets: one question, one call of a tool, one answer."""

import json
from typing import Any

QUESTION = "What is the weather in Paris?"
TOOL_RESULT = "sunny, 21 degrees"
ANSWER = "It is sunny in Paris."
AGENT = "weather_agent"
KEY = "sk-local-only"


def reply(request: dict[str, Any]) -> dict[str, Any] | str:
    """What the model server answers: first the tool, then the answer."""
    names = [tool["function"]["name"] for tool in request.get("tools") or ()]
    has_result = TOOL_RESULT in json.dumps(request["messages"])
    if "final_answer" in names and has_result:
        return call("final_answer", {"answer": ANSWER})
    if names and not has_result:
        # Claude Code offers dozens of its own beside it, and may keep it back until it is found.
        name = next((name for name in names if "get_weather" in name), None)
        if "exec_command" in names:  # Codex looks out of its shell
            return call("exec_command", {"cmd": f"echo {TOOL_RESULT}"})
        if name is None:
            return call("ToolSearch", {"query": "get_weather"})
        return call(name, {"city": "Paris"})
    if request.get("response_format"):
        return json.dumps({"text": ANSWER})
    return ANSWER


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """An assistant's message that calls a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    made = {"id": f"call_{name}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [made]}


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "The weather in a city.", "parameters": CITY}
WEATHER_TOOL = {"type": "function", "function": WEATHER}


def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: Its name.
    """
    return TOOL_RESULT


def messages_after_tool() -> list[Any]:
    """The conversation as it stands before the answer, for agents that are no loop."""
    asked = call("get_weather", {"city": "Paris"})
    result = {"role": "tool", "tool_call_id": "call_get_weather", "content": TOOL_RESULT}
    return [{"role": "user", "content": QUESTION}, asked, result]
