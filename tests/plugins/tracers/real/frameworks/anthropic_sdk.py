"""Anthropic's own client."""

from typing import Any

from anthropic import AsyncAnthropic
from scene import KEY, QUESTION, TOOL_RESULT, WEATHER_TOOL


async def anthropic_messages(base_url: str) -> str:
    tool: Any = {
        "name": "get_weather",
        "description": "The weather in a city.",
        "input_schema": WEATHER_TOOL["function"]["parameters"],
    }
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    async with AsyncAnthropic(base_url=base_url.removesuffix("/v1"), api_key=KEY) as client:
        first = await client.messages.create(
            model="echo", max_tokens=100, messages=messages, tools=[tool]
        )
        messages.append({"role": "assistant", "content": [b.model_dump() for b in first.content]})
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": TOOL_RESULT}
            for block in first.content
            if block.type == "tool_use"
        ]
        messages.append({"role": "user", "content": results})
        last = await client.messages.create(
            model="echo", max_tokens=100, messages=messages, tools=[tool]
        )
    return "".join(block.text for block in last.content if block.type == "text")
