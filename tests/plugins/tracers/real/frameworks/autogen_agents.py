"""AutoGen."""

from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from scene import AGENT, KEY, QUESTION, get_weather


async def autogen_agent(base_url: str) -> str:
    info: Any = {
        "vision": False,
        "function_calling": True,
        "json_output": False,
        "structured_output": False,
        "family": "unknown",
    }
    client = OpenAIChatCompletionClient(
        model="echo", base_url=base_url, api_key=KEY, model_info=info
    )
    agent = AssistantAgent(AGENT, client, tools=[get_weather], reflect_on_tool_use=True)
    result = await agent.run(task=QUESTION)
    await client.close()
    return str(result.messages[-1].to_text())
