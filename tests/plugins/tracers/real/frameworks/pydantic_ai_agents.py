"""Pydantic AI."""

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from scene import AGENT, KEY, QUESTION, get_weather


async def pydantic_ai_agent(base_url: str) -> str:
    model = OpenAIChatModel("echo", provider=OpenAIProvider(base_url=base_url, api_key=KEY))
    agent = Agent(model, name=AGENT, tools=[get_weather])
    return (await agent.run(QUESTION)).output
