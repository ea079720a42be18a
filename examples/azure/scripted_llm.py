"""A model server for dry runs without a model: it looks up the country that it reads of."""

import json
from typing import Any

from capital_agent import CAPITALS


def scripted_reply(request: dict[str, Any]) -> Any:
    """What ``agl_testing.echo_llm.EchoLLM`` answers to the agent of this folder."""
    last = request["messages"][-1]
    if last["role"] == "tool":
        return last["content"]
    return call_for(last["content"])


def call_for(question: str) -> dict[str, Any]:
    """A message that looks up the country in a question."""
    country = next(name for name in CAPITALS if name in question)
    function = {"name": "country_capital_lookup", "arguments": json.dumps({"country": country})}
    call = {"id": f"call_{country}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}
