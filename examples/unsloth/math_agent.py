"""An agent that solves maths problems: OpenAI's Agents SDK, and a calculator of an MCP server.

    python math_agent.py     # a few problems, against the model at OPENAI_BASE_URL

The calculator is the one of the example ``calc_x``.
"""

import asyncio
import contextlib
import contextvars
import json
import math
import os
import re
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict
from weakref import WeakKeyDictionary

import agl

FOLDER = Path(__file__).parent
CALCULATOR = FOLDER.parent / "calc_x" / "calculator.py"
CALCULATOR_TIMEOUT_SECONDS = 60.0
"""For its start, too, which takes a second on an idle machine."""
INSTRUCTIONS = (
    "Use the calculator tool for every question. "
    "Return only the numeric answer wrapped like ### <answer> ###."
)
MAX_TURNS = 8
REQUEST_TIMEOUT_SECONDS = 600.0
"""Also to connect: the default of 5 seconds is short for a machine that trains."""


class MathKey(TypedDict):
    """The number that is the answer."""

    target: float


class MathProblem(TypedDict):
    """A problem, and what only its grader sees."""

    input: str
    private: MathKey


def grade_answer(task: MathProblem, private: MathKey, result: str) -> float:
    """The reward: 1 for the right number, else 0. Its process is none that the agent reaches."""
    return compute_reward(str(result), private["target"])


@agl.rollout(grade=grade_answer)
async def math_agent(task: MathProblem, llm: agl.LLM) -> str:
    """Solve a problem; what is returned is graded."""
    return await solve(task["input"], llm)


async def solve(question: str, llm: agl.LLM) -> str:
    """What the agent says at last; nothing, when it used up its turns."""
    from agents import (
        Agent,
        MaxTurnsExceeded,
        ModelBehaviorError,
        ModelSettings,
        OpenAIChatCompletionsModel,
        RunConfig,
        Runner,
    )
    from openai import AsyncOpenAI

    known = ("temperature", "top_p", "max_tokens")
    sampling = {name: v for name, v in llm.sampling_parameters.items() if name in known}
    others = {name: v for name, v in llm.sampling_parameters.items() if name not in known}
    client = AsyncOpenAI(
        base_url=llm.endpoint,
        api_key=llm.api_key or "none",
        timeout=REQUEST_TIMEOUT_SECONDS,
        max_retries=0,  # the gateway retries, and records each call once
        default_headers={"x-agl-agent": "math_agent"},
    )
    async with client, calculator() as server:
        agent = Agent(
            name="math_agent",
            instructions=INSTRUCTIONS,
            mcp_servers=[server],
            model=OpenAIChatCompletionsModel(model=llm.model, openai_client=client),
            model_settings=ModelSettings(**sampling, extra_body=others or None),
        )
        # The SDK would send its traces to OpenAI; what counts is recorded by the gateway.
        config = RunConfig(tracing_disabled=True)
        try:
            result = await Runner.run(agent, question, max_turns=MAX_TURNS, run_config=config)
        except (MaxTurnsExceeded, ModelBehaviorError):
            # The model went on calling, or called a tool that there is not: that is its failure.
            return ""
    return str(result.final_output)


def compute_reward(result: str, target: float) -> float:
    """1 when the last ``### ... ###`` holds the target, to a hundredth of a percent, else 0."""
    found = re.findall(r"###\s*\$?\s*(-?[\d,]*\.?\d+(?:e-?\d+)?)[^#]*###", result)
    if not found:
        return 0.0
    return float(math.isclose(float(found[-1].replace(",", "")), target, rel_tol=1e-4))


def load_problems(path: Path | None = None) -> list[MathProblem]:
    """The problems of a file of JSON lines with ``input`` and ``target``, the form of GSM-hard.

    Args:
        path: None takes ``data_gsmhard.jsonl`` beside this file, if it is there, else the
            ``problems.jsonl`` that comes with the example.
    """
    gsm_hard = FOLDER / "data_gsmhard.jsonl"
    path = path or (gsm_hard if gsm_hard.is_file() else FOLDER / "problems.jsonl")
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [math_problem(line["input"], line["target"]) for line in lines]


def math_problem(question: str, target: float) -> MathProblem:
    """A problem with its answer where the agent does not get it."""
    return {"input": question, "private": {"target": target}}


# --- the calculator -------------------------------------------------------------------------------


@dataclass
class Shared:
    """A calculator's process, and how many rollouts use it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    server: Any = None
    owner: "asyncio.Task[None] | None" = None
    is_done: asyncio.Event = field(default_factory=asyncio.Event)
    num_users: int = 0


_SHARED: "WeakKeyDictionary[asyncio.AbstractEventLoop, Shared]" = WeakKeyDictionary()


@contextlib.asynccontextmanager
async def calculator() -> AsyncGenerator[Any]:
    """The calculator; rollouts that run at the same time use one process together.

    It is started for the first of them and stopped after the last: a process of its own for each
    rollout would cost half a second of CPU time and 60 MB.
    """
    shared = _SHARED.setdefault(asyncio.get_running_loop(), Shared())
    async with shared.lock:
        if shared.num_users == 0:
            ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            shared.is_done = asyncio.Event()
            # In an empty context: it outlives this rollout, and must not trace for it.
            shared.owner = asyncio.create_task(
                _own(ready, shared.is_done), context=contextvars.Context()
            )
            try:
                shared.server = await ready
            except BaseException:
                shared.is_done.set()
                raise
        shared.num_users += 1
    try:
        yield shared.server
    finally:
        async with shared.lock:
            shared.num_users -= 1
            if shared.num_users == 0 and shared.owner is not None:
                shared.is_done.set()
                await shared.owner


async def _own(ready: "asyncio.Future[Any]", is_done: asyncio.Event) -> None:
    """Hold the connection: MCP wants it opened and closed by one and the same task."""
    from agents.mcp import MCPServerStdio

    server = MCPServerStdio(
        name="calculator",
        params={"command": sys.executable, "args": [str(CALCULATOR)]},
        cache_tools_list=True,
        client_session_timeout_seconds=CALCULATOR_TIMEOUT_SECONDS,
    )
    try:
        async with server:
            if not ready.done():  # it was cancelled with the rollout that waited for it
                ready.set_result(server)
            await is_done.wait()
    except Exception as error:
        if ready.done():
            raise
        ready.set_exception(error)


async def debug() -> None:
    """Solve three problems without trainer, runner or store."""
    llm = agl.LLM(
        endpoint=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ.get("OPENAI_API_KEY"),
        model=os.environ.get("AGENT_MODEL", "gpt-4.1-mini"),
    )
    for problem in load_problems()[:3]:
        answer = await solve(problem["input"], llm)
        reward = compute_reward(answer, problem["private"]["target"])
        print(f"{reward:g}  {problem['input']}\n   {answer}")


if __name__ == "__main__":
    asyncio.run(debug())
