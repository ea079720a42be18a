"""A model server for tests: it asks the calculator for the target, and answers with the result."""

import json
from collections.abc import Callable
from typing import Any

from math_agent import MathProblem

Reply = Callable[[dict[str, Any]], dict[str, Any] | str]


def scripted_reply(problems: list[MathProblem]) -> Reply:
    """What ``agl_testing.echo_llm.EchoLLM`` answers to the agent about these problems."""
    targets = {problem["input"]: problem["private"]["target"] for problem in problems}

    def reply(request: dict[str, Any]) -> dict[str, Any] | str:
        last = request["messages"][-1]
        if last["role"] == "tool":
            content = last["content"]
            text = content if isinstance(content, str) else content[0]["text"]
            return f"### {text} ###"
        arguments = json.dumps({"expression": f"{targets[last['content']]} + 0"})
        function = {"name": "calculate", "arguments": arguments}
        call = {"id": "call_1", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    return reply
