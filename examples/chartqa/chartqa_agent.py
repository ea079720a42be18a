"""An agent that answers questions about charts: it looks, reads off, works out, checks and mends.

    observe -> extract -> calculate -> check -> the end
                                       ^  |
                                       +- refine

A graph of LangGraph whose five nodes call a model; each names itself in the header ``x-agl-agent``,
so that a training run can choose between them. ``observe`` and ``extract`` see the chart. The
others work from the data that were read off, and see text alone: these are what is trained.
"""

import asyncio
import re
from pathlib import Path
from typing import Any, TypedDict
from weakref import WeakKeyDictionary

import prompts
from chart_tasks import ChartKey, ChartTask, find_answer, relaxed_accuracy
from multimodal_utils import ImageUrls, message

import agl

REQUEST_TIMEOUT_SECONDS = 600.0
"""Also to connect: the default of 5 seconds is short for a machine that trains."""


class State(TypedDict):
    """What goes through the graph."""

    question: str
    observation: str
    data: str
    answer: str
    """All that the model wrote to work it out."""
    feedback: str
    is_right: bool
    num_turns: int
    """How often an answer was worked out so far."""


def build_graph(
    llm: agl.LLM, eyes: agl.LLM, image: Path, *, max_turns: int, image_urls: ImageUrls
) -> Any:
    """The compiled graph of one task; ``ainvoke({"question": ...})`` returns the last state.

    Args:
        llm: The model that works with text.
        eyes: The model that sees the chart; it may be the same.
        image: The chart.
        max_turns: Answers worked out at most, the first one included.
        image_urls: How the chart goes to the model.
    """
    from langchain_openai import ChatOpenAI
    from langgraph.graph import END, START, StateGraph

    async def ask(node: str, prompt: str, state: State, chart: Path | None = None) -> str:
        chosen = llm if chart is None else eyes
        model = ChatOpenAI(
            model=chosen.model,
            base_url=chosen.endpoint,
            api_key=chosen.api_key or "none",  # type: ignore[arg-type]
            default_headers={"x-agl-agent": node},
            max_retries=0,  # the gateway retries, and records each call once
            **_http_clients(),
            **_sampling(chosen.sampling_parameters),
        )
        content = message(prompt.format(**state), chart, image_urls)
        answer = await model.ainvoke([{"role": "user", "content": content}])
        return str(answer.content)

    async def observe(state: State) -> dict[str, Any]:
        return {"observation": await ask("observe", prompts.OBSERVE, state, image)}

    async def extract(state: State) -> dict[str, Any]:
        return {"data": await ask("extract", prompts.EXTRACT, state, image)}

    async def calculate(state: State) -> dict[str, Any]:
        return {"answer": await ask("calculate", prompts.CALCULATE, state), "num_turns": 1}

    async def check(state: State) -> dict[str, Any]:
        feedback = await ask("check", prompts.CHECK, state)
        return {"feedback": feedback, "is_right": says_right(feedback)}

    async def refine(state: State) -> dict[str, Any]:
        answer = await ask("refine", prompts.REFINE, state)
        return {"answer": answer, "num_turns": state["num_turns"] + 1}

    def after_check(state: State) -> str:
        return END if state["is_right"] or state["num_turns"] >= max_turns else "refine"

    graph = StateGraph(State)
    for node in (observe, extract, calculate, check, refine):
        graph.add_node(node)
    graph.add_edge(START, "observe")
    graph.add_edge("observe", "extract")
    graph.add_edge("extract", "calculate")
    graph.add_edge("calculate", "check")
    graph.add_conditional_edges("check", after_check, ["refine", END])
    graph.add_edge("refine", "check")
    return graph.compile(name="chartqa_agent")


def says_right(feedback: str) -> bool:
    """What the last verdict in a check is; without any, the answer is taken as wrong."""
    verdicts = re.findall(r"THE ANSWER IS (RIGHT|WRONG)", feedback.upper())
    return bool(verdicts) and verdicts[-1] == "RIGHT"


_CLIENTS: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Any]]" = WeakKeyDictionary()


def _http_clients() -> dict[str, Any]:
    """One pair of clients per event loop: making one takes longer than a small model's answer."""
    import httpx

    loop = asyncio.get_running_loop()
    if loop not in _CLIENTS:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        _CLIENTS[loop] = {
            "http_async_client": httpx.AsyncClient(timeout=REQUEST_TIMEOUT_SECONDS, limits=limits),
            "http_client": httpx.Client(timeout=REQUEST_TIMEOUT_SECONDS),
        }
    return _CLIENTS[loop]


def _sampling(parameters: dict[str, Any]) -> dict[str, Any]:
    """As ``ChatOpenAI`` takes them: what it does not know by name goes into the body as it is."""
    known = {"temperature", "top_p", "max_tokens", "seed", "n", "stop"}
    named = {name: value for name, value in parameters.items() if name in known}
    others = {name: value for name, value in parameters.items() if name not in known}
    return {**named, **({"extra_body": others} if others else {})}


class LitChartQAAgent(agl.LitAgent[ChartTask]):
    """Does one task: build the graph, and run it. The answer with which it ends is graded.

    Args:
        vision_model: The model behind the gateway that sees the charts; None where the one that is
            trained, or tried, sees them itself.
        max_turns: Answers worked out at most, the first one included.
        image_urls: How charts go to the model: ``data``, or ``file`` for a server that may read
            the files of this machine.
    """

    def __init__(
        self, vision_model: str | None = None, max_turns: int = 2, image_urls: ImageUrls = "data"
    ) -> None:
        super().__init__()
        self.vision_model = vision_model
        self.max_turns = max_turns
        self.image_urls: ImageUrls = image_urls

    async def rollout_async(
        self, task: ChartTask, resources: agl.NamedResources, rollout: agl.Rollout
    ) -> str:
        """The answer with which the agent ends."""
        llm = resources["main_llm"]
        assert isinstance(llm, agl.LLM)
        assert isinstance(rollout, agl.AttemptedRollout)
        if isinstance(llm, agl.ProxyLLM):
            llm = llm.with_attempted_rollout(rollout)
        return await self.answer(task, llm)

    def grade(self, task: ChartTask, private: ChartKey, result: str) -> float:
        """ChartQA's relaxed accuracy. Called in a process of its own; the agent gets no answers."""
        return relaxed_accuracy(str(result), private["answers"])

    async def answer(self, task: ChartTask, llm: agl.LLM) -> str:
        """The answer with which the agent ends."""
        eyes = llm
        if self.vision_model is not None:
            # Another model: what the trained one is sampled with is not for it.
            sampling = {"temperature": 0.0, "max_tokens": 512}
            eyes = llm.model_copy(
                update={"model": self.vision_model, "sampling_parameters": sampling}
            )
        graph = build_graph(
            llm, eyes, Path(task["image"]), max_turns=self.max_turns, image_urls=self.image_urls
        )
        # AgentOps' tracer has a handler for LangChain; the other tracers need none.
        tracer = agl.get_active_tracer()
        handler = tracer.get_langchain_handler() if tracer else None
        state = await graph.ainvoke(
            {"question": task["question"]},
            {"callbacks": [handler] if handler else [], "recursion_limit": 100},
        )
        return find_answer(state["answer"])
