"""OpenAI's own client: its dialects and ways of calling."""

from typing import Any

from openai import AsyncOpenAI
from pydantic import BaseModel
from scene import KEY, QUESTION, TOOL_RESULT, WEATHER_TOOL, messages_after_tool


async def openai_chat(base_url: str, question: str = QUESTION) -> str:
    messages: list[Any] = [{"role": "user", "content": question}]
    async with AsyncOpenAI(base_url=base_url, api_key=KEY) as client:
        first = await client.chat.completions.create(
            model="echo",
            messages=messages,
            tools=[WEATHER_TOOL],  # pyright: ignore
        )
        message = first.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls or ():
            messages.append({"role": "tool", "tool_call_id": call.id, "content": TOOL_RESULT})
        last = await client.chat.completions.create(
            model="echo",
            messages=messages,
            tools=[WEATHER_TOOL],  # pyright: ignore
        )
    return last.choices[0].message.content or ""


async def openai_stream(base_url: str) -> str:
    text = ""
    async with AsyncOpenAI(base_url=base_url, api_key=KEY) as client:
        for messages in ([{"role": "user", "content": QUESTION}], messages_after_tool()):
            stream = await client.chat.completions.create(
                model="echo",
                messages=messages,
                tools=[WEATHER_TOOL],  # pyright: ignore
                stream=True,
            )
            async for chunk in stream:
                if chunk.choices:
                    text += chunk.choices[0].delta.content or ""
    return text


async def openai_parse(base_url: str) -> str:
    class Report(BaseModel):
        text: str

    async with AsyncOpenAI(base_url=base_url, api_key=KEY) as client:
        for messages in ([{"role": "user", "content": QUESTION}], messages_after_tool()):
            tool = {**WEATHER_TOOL["function"], "strict": True}
            answer = await client.chat.completions.parse(
                model="echo",
                messages=messages,
                tools=[{"type": "function", "function": tool}],
                response_format=Report,
            )
    return answer.choices[0].message.parsed.text


async def openai_responses(base_url: str) -> str:
    tool: Any = {"type": "function", **WEATHER_TOOL["function"]}
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    async with AsyncOpenAI(base_url=base_url, api_key=KEY) as client:
        first = await client.responses.create(model="echo", input=items, tools=[tool])
        for item in first.output:
            items.append(item.model_dump(exclude_none=True))
            if item.type == "function_call":
                items.append(
                    {"type": "function_call_output", "call_id": item.call_id, "output": TOOL_RESULT}
                )
        last = await client.responses.create(model="echo", input=items, tools=[tool])
    return last.output_text
