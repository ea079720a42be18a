"""A model server for dry runs without a model: it knows the results by heart.

It asks the calculator to add zero to the result, and answers with what the calculator says.
"""

import json
from collections.abc import Callable
from typing import Any

from calc_tasks import CalcTask

Reply = Callable[[dict[str, Any]], dict[str, Any] | str]


def scripted_reply(tasks: list[CalcTask]) -> Reply:
    """What ``agl_testing.echo_llm.EchoLLM`` answers to the agent about these problems."""
    results = {task["question"]: task["private"]["result"] for task in tasks}

    def reply(request: dict[str, Any]) -> dict[str, Any] | str:
        last = request["messages"][-1]
        if last["role"] == "tool":
            return f"The calculator says so. ### ANSWER: {last['content']} ###"
        question = next(m["content"] for m in request["messages"] if m["role"] == "user")
        arguments = json.dumps({"expression": f"{results[question]} + 0"})
        function = {"name": "calculate", "arguments": arguments}
        call = {"id": "call_1", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    return reply
