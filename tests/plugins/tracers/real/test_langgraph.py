"""LangGraph and LangChain imported at the top of the script, trained as scripts of 0.3 are."""

import asyncio
import sys
from typing import Any, TypedDict

import pytest
from scene import KEY

import agl
from agl_records.calls.reader import model_calls
from agl_testing.echo_llm import EchoLLM

pytest.importorskip("langchain")

from langchain.agents import create_agent
from langchain_core.runnables import RunnableConfig
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

# Imports take long on a busy machine.
pytestmark = pytest.mark.timeout(300)


class State(TypedDict):
    url: str
    answer: str


def ask(state: State, config: RunnableConfig) -> dict[str, str]:
    """A node that takes more than the state."""
    model = ChatOpenAI(model="echo", base_url=state["url"], api_key=KEY)  # pyright: ignore
    return {"answer": str(model.invoke("one two").content)}


builder = StateGraph(State)
builder.add_node("ask", ask)
builder.add_edge(START, "ask")
builder.add_edge("ask", END)
graph = builder.compile()


def chain(url: str) -> Any:
    model = ChatOpenAI(model="echo", base_url=url, api_key=KEY)  # pyright: ignore
    return create_agent(model, tools=[], name="weather_agent")


def question(url: str) -> State:
    return {"url": url, "answer": ""}


MESSAGES: Any = {"messages": [{"role": "user", "content": "one two"}]}


@agl.rollout
def graph_invoke(task: str) -> float:
    return float("two" in graph.invoke(question(task))["answer"])


@agl.rollout
async def graph_invoke_in_a_thread(task: str) -> float:
    result = await asyncio.to_thread(graph.invoke, question(task))
    return float("two" in result["answer"])


@agl.rollout
async def graph_ainvoke(task: str) -> float:
    return float("two" in (await graph.ainvoke(question(task)))["answer"])


@agl.rollout
def graph_stream(task: str) -> float:
    return float("two" in list(graph.stream(question(task), stream_mode="values"))[-1]["answer"])


@agl.rollout
async def graph_astream(task: str) -> float:
    states = [each async for each in graph.astream(question(task), stream_mode="values")]
    return float("two" in states[-1]["answer"])


@agl.rollout
def chain_invoke(task: str) -> float:
    return float("two" in chain(task).invoke(MESSAGES)["messages"][-1].content)


@agl.rollout
async def chain_ainvoke(task: str) -> float:
    return float("two" in (await chain(task).ainvoke(MESSAGES))["messages"][-1].content)


class WithHandler(agl.LitAgent[str]):
    def rollout(self, task: str, resources: Any, rollout: Any) -> float:
        handler = self.tracer.get_langchain_handler()
        config: Any = {"callbacks": [handler] if handler else []}
        return float("two" in graph.invoke(question(task), config)["answer"])


AGENTS: list[agl.LitAgent[str]] = [
    graph_invoke,
    graph_invoke_in_a_thread,
    graph_ainvoke,
    graph_stream,
    graph_astream,
    chain_invoke,
    chain_ainvoke,
    WithHandler(),
]


class Look(agl.Algorithm):
    """Runs the tasks and keeps what they left."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, float | None, int]] = []

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        store = self.get_store()
        for task in train_dataset:
            queued = await store.enqueue_rollout(task)
            (rollout,) = await store.wait_for_rollouts(rollout_ids=[queued.rollout_id])
            spans = list(await store.query_spans(rollout.rollout_id))
            self.seen.append(
                (rollout.status, agl.find_final_reward(spans), len(model_calls(spans)))
            )


@pytest.mark.parametrize("strategy", ["shm", "cs"])
@pytest.mark.parametrize(
    "agent", AGENTS, ids=[getattr(each, "__name__", type(each).__name__) for each in AGENTS]
)
def test_graph_imported_before_the_tracer_began_is_traced(agent, strategy, tracer, tracer_name):
    if strategy == "cs" and sys.platform == "win32":
        pytest.skip("processes are forked")
    algorithm = Look()
    options: dict[str, Any] = {"type": strategy} | ({"server_port": 0} if strategy == "cs" else {})
    with EchoLLM() as llm:
        agl.Trainer(algorithm=algorithm, tracer=tracer_name, strategy=options).fit(agent, [llm.url])
    assert algorithm.seen == [("succeeded", 1.0, 0 if tracer_name == "otel" else 1)]
