"""The Microsoft Agent Framework."""

from typing import Any

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
from scene import AGENT, KEY, QUESTION, get_weather


async def _agent_framework(client: Any, **options: Any) -> str:
    agent = Agent(client=client, name=AGENT, tools=[get_weather], default_options=options)
    return (await agent.run(QUESTION)).text


async def agent_framework_chat(base_url: str) -> str:
    return await _agent_framework(
        OpenAIChatCompletionClient("echo", base_url=base_url, api_key=KEY)
    )


async def agent_framework_responses(base_url: str) -> str:
    # Otherwise it sends only what is new, and asks the server for the rest of the conversation.
    client = OpenAIChatClient("echo", base_url=base_url, api_key=KEY)
    return await _agent_framework(client, store=False)
