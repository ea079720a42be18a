"""LangChain's ``create_agent``, and a graph of LangGraph written by hand."""

import asyncio
from typing import Any

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from scene import AGENT, KEY, QUESTION, get_weather

import agl


def _langchain(base_url: str) -> tuple[Any, dict[str, Any]]:
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
