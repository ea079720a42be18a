"""An agent that solves maths problems with a calculator: AutoGen, and a tool of an MCP server.

python calc_agent.py     # a few problems, against the model at OPENAI_BASE_URL
"""

import asyncio
import contextlib
import contextvars
import os
import sys
import warnings
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from answers import grade
from calc_tasks import CalcKey, CalcTask, load_tasks

import agl

SYSTEM_MESSAGE = (
    "Solve the problem. Use the calculator for every calculation. When you know the answer, end "
    "with it in the form ### ANSWER: <number> ###"
)
MAX_TOOL_CALLS = 8
REQUEST_TIMEOUT_SECONDS = 600.0
"""Also to connect: the default of 5 seconds is short for a machine that trains."""
CALCULATOR_TIMEOUT_SECONDS = 60.0
"""For its start, too, which takes a second on an idle machine."""


# Behind the gateway a model has another name than the one that it is asked for by.
warnings.filterwarnings("ignore", message="Resolved model mismatch")


def grade_answer(task: CalcTask, private: CalcKey, result: str) -> float:
    """The reward: 1 for the right number, else 0. Its process is none that the agent reaches."""
    return grade(str(result), private["result"])


@agl.rollout(grade=grade_answer)
async def calc_agent(task: CalcTask, llm: agl.LLM) -> str:
    """Solve a problem; what is returned is graded."""
    return await solve(task["question"], llm)


async def solve(question: str, llm: agl.LLM) -> str:
    """What the agent says at last."""
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    info: Any = {
        "vision": False,
        "function_calling": True,
        "json_output": False,
        "structured_output": False,
        "family": "unknown",
    }
    # AutoGen leaves out what it does not know; ``extra_body`` goes into the request as it is.
    known = ("temperature", "top_p", "max_tokens", "seed", "stop")
    sampling = {name: v for name, v in llm.sampling_parameters.items() if name in known}
    others = {name: v for name, v in llm.sampling_parameters.items() if name not in known}
    if others:
        sampling["extra_body"] = others
    client = OpenAIChatCompletionClient(
        model=llm.model,
        base_url=llm.endpoint,
        api_key=llm.api_key or "none",
        model_info=info,
        default_headers={"x-agl-agent": "calc_agent"},
        timeout=REQUEST_TIMEOUT_SECONDS,
        max_retries=0,  # the gateway retries, and records each call once
        **sampling,
    )
    async with calculator() as workbench:
        agent = AssistantAgent(
            "calc_agent",
            client,
            workbench=workbench,
            system_message=SYSTEM_MESSAGE,
            max_tool_iterations=MAX_TOOL_CALLS,
            reflect_on_tool_use=False,  # it goes on until the model answers in words
        )
        try:
            result = await agent.run(task=question)
        finally:
            await client.close()
    return str(result.messages[-1].to_text())  # type: ignore[union-attr]


# --- the calculator -------------------------------------------------------------------------------


@dataclass
class Shared:
    """A calculator's process, and how many rollouts use it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    workbench: Any = None
    num_users: int = 0


_SHARED: "WeakKeyDictionary[asyncio.AbstractEventLoop, Shared]" = WeakKeyDictionary()


@contextlib.asynccontextmanager
async def calculator() -> AsyncGenerator[Any]:
    """The calculator's workbench; rollouts that run at the same time use one process together.

    It is started for the first of them and stopped after the last: a process of its own for each
    rollout would cost half a second of CPU time and 60 MB.
    """
    from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams

    shared = _SHARED.setdefault(asyncio.get_running_loop(), Shared())
    async with shared.lock:
        if shared.num_users == 0:
            path = Path(__file__).with_name("calculator.py")
            parameters = StdioServerParams(
                command=sys.executable,
                args=[str(path)],
                read_timeout_seconds=CALCULATOR_TIMEOUT_SECONDS,
            )
            workbench = McpWorkbench(parameters)
            # In an empty context: it outlives this rollout, and must not trace for it.
            try:
                await asyncio.create_task(workbench.start(), context=contextvars.Context())
            except BaseException:
                with contextlib.suppress(RuntimeError):  # it had not begun
                    await workbench.stop()
                raise
            shared.workbench = workbench
        shared.num_users += 1
    try:
        yield shared.workbench
    finally:
        async with shared.lock:
            shared.num_users -= 1
            if shared.num_users == 0:
                await shared.workbench.stop()


async def debug() -> None:
    """Solve three problems without trainer, runner or store."""
    llm = agl.LLM(
        endpoint=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ.get("OPENAI_API_KEY"),
        model=os.environ.get("AGENT_MODEL", "gpt-4.1-nano"),
    )
    for task in load_tasks()[1][:3]:
        answer = await solve(task["question"], llm)
        print(f"{grade(answer, task['private']['result']):g}  {task['question']}\n   {answer}")


if __name__ == "__main__":
    asyncio.run(debug())
