"""smolagents."""

import asyncio

from scene import AGENT, KEY, QUESTION, get_weather
from smolagents import LogLevel, OpenAIServerModel, ToolCallingAgent, tool


async def smolagents_agent(base_url: str) -> str:
    model = OpenAIServerModel("echo", api_base=base_url, api_key=KEY)
    agent = ToolCallingAgent(
        tools=[tool(get_weather)], model=model, name=AGENT, verbosity_level=LogLevel.OFF
    )
    return str(await asyncio.to_thread(agent.run, QUESTION))
