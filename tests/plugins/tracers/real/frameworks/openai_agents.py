"""The OpenAI Agents SDK."""

from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
from openai import AsyncOpenAI
from scene import AGENT, KEY, QUESTION, get_weather


async def _openai_agents(model: Any) -> str:
    agent = Agent(name=AGENT, model=model, tools=[function_tool(get_weather)])
    return str((await Runner.run(agent, QUESTION)).final_output)


async def openai_agents_chat(base_url: str) -> str:
    async with AsyncOpenAI(base_url=base_url, api_key=KEY) as client:
        return await _openai_agents(OpenAIChatCompletionsModel("echo", openai_client=client))


async def openai_agents_responses(base_url: str) -> str:
    async with AsyncOpenAI(base_url=base_url, api_key=KEY) as client:
        return await _openai_agents(OpenAIResponsesModel("echo", openai_client=client))
