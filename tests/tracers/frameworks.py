"""One small agent in each framework: it asks for the weather in Paris, calls a tool, and answers.

Each is called with a base address, as an agent under agl is, and returns its answer's text.
"""

import json
from typing import Any

QUESTION = "What is the weather in Paris?"
TOOL_RESULT = "sunny, 21 degrees"
ANSWER = "It is sunny in Paris."
AGENT = "weather_agent"
KEY = "sk-local-only"


def reply(request: dict[str, Any]) -> dict[str, Any] | str:
    """What the model server answers: first the tool, then the answer."""
    names = [tool["function"]["name"] for tool in request.get("tools") or ()]
    has_result = TOOL_RESULT in json.dumps(request["messages"])
    if "final_answer" in names and has_result:
        return _call("final_answer", {"answer": ANSWER})
    if names and not has_result:
        return _call(next(name for name in names if name != "final_answer"), {"city": "Paris"})
    if request.get("response_format"):
        return json.dumps({"text": ANSWER})
    return ANSWER


def _call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": f"call_{name}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: Its name.
    """
    return TOOL_RESULT


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


def _messages_after_tool() -> list[Any]:
    call = _call("get_weather", {"city": "Paris"})
    result = {"role": "tool", "tool_call_id": "call_get_weather", "content": TOOL_RESULT}
    return [{"role": "user", "content": QUESTION}, call, result]


async def openai_stream(base_url: str) -> str:
    from openai import AsyncOpenAI

    text = ""
    async with AsyncOpenAI(base_url=base_url, api_key=KEY) as client:
        for messages in ([{"role": "user", "content": QUESTION}], _messages_after_tool()):
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
            _messages_after_tool(),
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


async def curl(base_url: str) -> str:
    """An agent that is not Python: its process calls the address, and nothing else."""
    import asyncio

    text = ""
    for messages in ([{"role": "user", "content": QUESTION}], _messages_after_tool()):
        body = {"model": "echo", "messages": messages, "tools": [WEATHER_TOOL]}
        process = await asyncio.create_subprocess_exec(
            *(
                "curl",
                "-sS",
                f"{base_url}/chat/completions",
                "-H",
                "content-type: application/json",
            ),
            *("-H", f"x-agl-agent: {AGENT}", "-d", json.dumps(body)),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        text = json.loads(output)["choices"][0]["message"]["content"] or ""
    return text


FRAMEWORKS: dict[str, tuple[str, str, Any]] = {
    "OpenAI SDK, chat": ("openai", "openai", openai_chat),
    "OpenAI SDK, stream": ("openai", "openai", openai_stream),
    "OpenAI SDK, parse": ("openai", "openai", openai_parse),
    "OpenAI SDK, Responses": ("openai", "openai", openai_responses),
    "OpenAI Agents SDK, chat": ("openai-agents", "agents", openai_agents_chat),
    "OpenAI Agents SDK, Responses": ("openai-agents", "agents", openai_agents_responses),
    "LangChain agent": ("langchain", "langchain", langchain_agent),
    "LangGraph graph": ("langgraph", "langgraph", langgraph_graph),
    "Pydantic AI": ("pydantic-ai-slim", "pydantic_ai", pydantic_ai_agent),
    "smolagents": ("smolagents", "smolagents", smolagents_agent),
    "AutoGen": ("autogen-agentchat", "autogen_agentchat", autogen_agent),
    "Anthropic SDK": ("anthropic", "anthropic", anthropic_messages),
    "curl": ("", "json", curl),
}
"""Name: distribution, module and the agent."""
