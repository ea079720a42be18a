"""One small agent in each framework: it asks for the weather in Paris, calls a tool, and answers.

Each is called with a base address, as an agent under agl is, and returns its answer's text.
"""

import importlib.util
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal

from processes import NODE_OPENAI, claude_code, claude_version, curl, node, version_of
from scene import (
    AGENT,
    KEY,
    QUESTION,
    TOOL_RESULT,
    WEATHER_TOOL,
    get_weather,
    messages_after_tool,
)


async def openai_chat(base_url: str, question: str = QUESTION) -> str:
    from openai import AsyncOpenAI

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
    from openai import AsyncOpenAI

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
    from openai import AsyncOpenAI
    from pydantic import BaseModel

    class Report(BaseModel):
        text: str

    async with AsyncOpenAI(base_url=base_url, api_key=KEY) as client:
        for messages in (
            [{"role": "user", "content": QUESTION}],
            messages_after_tool(),
        ):
            tool = {**WEATHER_TOOL["function"], "strict": True}
            answer = await client.chat.completions.parse(
                model="echo",
                messages=messages,
                tools=[{"type": "function", "function": tool}],
                response_format=Report,
            )
    return answer.choices[0].message.parsed.text


async def openai_responses(base_url: str) -> str:
    from openai import AsyncOpenAI

    tool: Any = {"type": "function", **WEATHER_TOOL["function"]}
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    async with AsyncOpenAI(base_url=base_url, api_key=KEY) as client:
        first = await client.responses.create(model="echo", input=items, tools=[tool])
        for item in first.output:
            items.append(item.model_dump(exclude_none=True))
            if item.type == "function_call":
                items.append(
                    {
                        "type": "function_call_output",
                        "call_id": item.call_id,
                        "output": TOOL_RESULT,
                    }
                )
        last = await client.responses.create(model="echo", input=items, tools=[tool])
    return last.output_text


async def _openai_agents(model: Any) -> str:
    from agents import Agent, Runner, function_tool

    agent = Agent(name=AGENT, model=model, tools=[function_tool(get_weather)])
    return str((await Runner.run(agent, QUESTION)).final_output)


async def openai_agents_chat(base_url: str) -> str:
    from agents import OpenAIChatCompletionsModel
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=base_url, api_key=KEY) as client:
        return await _openai_agents(OpenAIChatCompletionsModel("echo", openai_client=client))


async def openai_agents_responses(base_url: str) -> str:
    from agents import OpenAIResponsesModel
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=base_url, api_key=KEY) as client:
        return await _openai_agents(OpenAIResponsesModel("echo", openai_client=client))


def _langchain(base_url: str) -> tuple[Any, dict[str, Any]]:
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    import agl

    model = ChatOpenAI(model="echo", base_url=base_url, api_key=KEY)  # pyright: ignore
    tracer = agl.get_active_tracer()
    handler = tracer.get_langchain_handler() if tracer else None
    agent = create_agent(model, tools=[get_weather], name=AGENT)
    return agent, {"callbacks": [handler] if handler else []}


async def langchain_agent(base_url: str, question: str = QUESTION) -> str:
    """``create_agent`` of LangChain, which is a graph of LangGraph."""
    agent, config = _langchain(base_url)
    result = await agent.ainvoke({"messages": [{"role": "user", "content": question}]}, config)
    return result["messages"][-1].content


def langchain_plain(base_url: str, question: str = QUESTION) -> str:
    """The same without asyncio."""
    agent, config = _langchain(base_url)
    result = agent.invoke({"messages": [{"role": "user", "content": question}]}, config)
    return result["messages"][-1].content


async def langgraph_graph(base_url: str) -> str:
    """A graph of nodes written by hand, run by ``invoke`` in a thread."""
    import asyncio

    from langchain_openai import ChatOpenAI
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    import agl

    model = ChatOpenAI(model="echo", base_url=base_url, api_key=KEY)  # pyright: ignore
    with_tools = model.bind_tools([get_weather])
    graph = StateGraph(MessagesState)
    graph.add_node(AGENT, lambda state: {"messages": [with_tools.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([get_weather]))
    graph.add_edge(START, AGENT)
    graph.add_conditional_edges(AGENT, tools_condition, {"tools": "tools", END: END})
    graph.add_edge("tools", AGENT)
    agent = graph.compile(name=AGENT)
    tracer = agl.get_active_tracer()
    handler = tracer.get_langchain_handler() if tracer else None
    result = await asyncio.to_thread(
        agent.invoke,
        {"messages": [{"role": "user", "content": QUESTION}]},
        {"callbacks": [handler] if handler else []},
    )
    return result["messages"][-1].content


async def pydantic_ai_agent(base_url: str) -> str:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("echo", provider=OpenAIProvider(base_url=base_url, api_key=KEY))
    agent = Agent(model, name=AGENT, tools=[get_weather])
    return (await agent.run(QUESTION)).output


async def smolagents_agent(base_url: str) -> str:
    import asyncio

    from smolagents import LogLevel, OpenAIServerModel, ToolCallingAgent, tool

    model = OpenAIServerModel("echo", api_base=base_url, api_key=KEY)
    agent = ToolCallingAgent(
        tools=[tool(get_weather)], model=model, name=AGENT, verbosity_level=LogLevel.OFF
    )
    return str(await asyncio.to_thread(agent.run, QUESTION))


async def autogen_agent(base_url: str) -> str:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

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


async def anthropic_messages(base_url: str) -> str:
    from anthropic import AsyncAnthropic

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


async def _agent_framework(client: Any, **options: Any) -> str:
    from agent_framework import Agent

    agent = Agent(client=client, name=AGENT, tools=[get_weather], default_options=options)
    return (await agent.run(QUESTION)).text


async def agent_framework_chat(base_url: str) -> str:
    from agent_framework.openai import OpenAIChatCompletionClient

    return await _agent_framework(
        OpenAIChatCompletionClient("echo", base_url=base_url, api_key=KEY)
    )


async def agent_framework_responses(base_url: str) -> str:
    from agent_framework.openai import OpenAIChatClient

    # Otherwise it sends only what is new, and asks the server for the rest of the conversation.
    client = OpenAIChatClient("echo", base_url=base_url, api_key=KEY)
    return await _agent_framework(client, store=False)


async def crewai_crew(base_url: str) -> str:
    from crewai import LLM, Agent, Crew, Task
    from crewai.tools import tool

    llm = LLM(model="openai/echo", base_url=base_url, api_key=KEY)
    agent = Agent(
        role=AGENT,
        goal="Answer questions about the weather.",
        backstory="You look before you speak.",
        llm=llm,
        tools=[tool("get_weather")(get_weather)],
    )
    task = Task(description=QUESTION, expected_output="One sentence.", agent=agent)
    return str(await Crew(agents=[agent], tasks=[task]).kickoff_async())


@dataclass(frozen=True)
class Framework:
    """How one framework is run, and what of it was tested.

    Args:
        name: As the pages have it.
        agent: Called with a base address; returns the answer's text.
        distributions: Whose versions are those of the framework.
        module: What has to be importable.
        programs: What has to be on the machine.
        speaks: Which API of the model's server the agent calls.
        calls: How many model calls it makes for the task.
        versions_of: Further versions, by name.
    """

    name: str
    agent: Callable[[str], Awaitable[str]]
    distributions: tuple[str, ...] = ()
    module: str = ""
    programs: tuple[str, ...] = ()
    speaks: Literal["chat", "responses", "messages"] = "chat"
    calls: int = 2
    versions_of: Callable[[], dict[str, str]] = dict

    def missing(self) -> str | None:
        """What this environment lacks; None when the framework can run."""
        if self.module and importlib.util.find_spec(self.module) is None:
            return self.module
        return next((each for each in self.programs if shutil.which(each) is None), None)

    def versions(self) -> dict[str, str]:
        """What is tested here, by name."""
        return {name: metadata.version(name) for name in self.distributions} | self.versions_of()


OPENAI_AGENTS = {"distributions": ("openai-agents", "openai"), "module": "agents"}
AGENT_FRAMEWORK = {
    "distributions": ("agent-framework-core", "agent-framework-openai"),
    "module": "agent_framework_openai",
}

FRAMEWORKS: dict[str, Framework] = {
    each.name: each
    for each in (
        Framework("OpenAI SDK, chat", openai_chat, ("openai",), "openai"),
        Framework("OpenAI SDK, stream", openai_stream, ("openai",), "openai"),
        Framework("OpenAI SDK, parse", openai_parse, ("openai",), "openai"),
        Framework(
            "OpenAI SDK, Responses", openai_responses, ("openai",), "openai", speaks="responses"
        ),
        Framework("OpenAI Agents SDK, chat", openai_agents_chat, **OPENAI_AGENTS),
        Framework(
            "OpenAI Agents SDK, Responses",
            openai_agents_responses,
            **OPENAI_AGENTS,
            speaks="responses",
        ),
        Framework(
            "LangChain agent", langchain_agent, ("langchain", "langchain-openai"), "langchain"
        ),
        Framework(
            "LangGraph graph", langgraph_graph, ("langgraph", "langchain-openai"), "langgraph"
        ),
        Framework("AutoGen", autogen_agent, ("autogen-agentchat", "autogen-ext"), "autogen_ext"),
        Framework("CrewAI", crewai_crew, ("crewai", "openai"), "crewai"),
        Framework("Pydantic AI", pydantic_ai_agent, ("pydantic-ai-slim",), "pydantic_ai"),
        Framework("Microsoft Agent Framework, chat", agent_framework_chat, **AGENT_FRAMEWORK),
        Framework(
            "Microsoft Agent Framework, Responses",
            agent_framework_responses,
            **AGENT_FRAMEWORK,
            speaks="responses",
        ),
        Framework("smolagents", smolagents_agent, ("smolagents",), "smolagents"),
        Framework(
            "Anthropic SDK", anthropic_messages, ("anthropic",), "anthropic", speaks="messages"
        ),
        Framework(
            "Claude Code",
            claude_code,
            ("claude-agent-sdk",),
            "claude_agent_sdk",
            speaks="messages",
            versions_of=lambda: {"its CLI": claude_version()},
        ),
        Framework(
            "Node.js, npm's openai",
            node,
            programs=("node", "npm"),
            versions_of=lambda: {"openai": NODE_OPENAI, "node": version_of("node")},
        ),
        Framework(
            "curl", curl, programs=("curl",), versions_of=lambda: {"curl": version_of("curl")}
        ),
    )
}
