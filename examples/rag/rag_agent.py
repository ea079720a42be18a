"""An agent that answers questions by looking passages up: OpenAI's Agents SDK, and an MCP server.

python wiki_retriever_mcp.py     # in another terminal
python rag_agent.py              # three questions, against the model at OPENAI_BASE_URL
"""

import asyncio
import os
from typing import Any

from metric_utils import score
from wiki_retriever_mcp import PORT
from wiki_tasks import Question, QuestionKey, load_tasks

import agl

INSTRUCTIONS = (
    "Answer the question. Look up what you need with the tool retrieve, one fact after the other: "
    "a question may take several steps. End with the answer alone, in a few words, in the form "
    "<answer>...</answer>"
)
MAX_TURNS = 6
REQUEST_TIMEOUT_SECONDS = 600.0
"""Also to connect: the default of 5 seconds is short for a machine that trains."""


def retriever_url() -> str:
    """Where the MCP server is: ``WIKI_RETRIEVER_URL``, or where it is by default."""
    return os.environ.get("WIKI_RETRIEVER_URL", f"http://127.0.0.1:{PORT}/mcp")


def grade_answer(task: Question, private: QuestionKey, result: str) -> float:
    """The reward: F1 of the answer. Its process is none that the agent reaches."""
    return score(str(result), private["answers"])


@agl.rollout(grade=grade_answer)
async def rag_agent(task: Question, llm: agl.LLM) -> str:
    """Answer a question; what is returned is graded."""
    return await answer(task["question"], llm)


async def answer(question: str, llm: agl.LLM) -> str:
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
    from agents.mcp import MCPServerStreamableHttp
    from openai import AsyncOpenAI

    known = ("temperature", "top_p", "max_tokens")
    sampling: dict[str, Any] = {n: v for n, v in llm.sampling_parameters.items() if n in known}
    others = {name: v for name, v in llm.sampling_parameters.items() if name not in known}
    client = AsyncOpenAI(
        base_url=llm.endpoint,
        api_key=llm.api_key or "none",
        timeout=REQUEST_TIMEOUT_SECONDS,
        max_retries=0,  # the gateway retries, and records each call once
        default_headers={"x-agl-agent": "rag_agent"},
    )
    server = MCPServerStreamableHttp(
        name="wiki_retriever",
        params={"url": retriever_url(), "timeout": 60},
        client_session_timeout_seconds=60,
        cache_tools_list=True,
    )
    async with client, server:
        agent = Agent(
            name="rag_agent",
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


async def debug() -> None:
    """Answer three questions without trainer, runner or store."""
    llm = agl.LLM(
        endpoint=os.environ.get("OPENAI_BASE_URL") or os.environ["OPENAI_API_BASE"],
        api_key=os.environ.get("OPENAI_API_KEY"),
        model=os.environ.get("AGENT_MODEL", "gpt-4.1-mini"),
    )
    for task in load_tasks()[1][:3]:
        said = await answer(task["question"], llm)
        print(f"{score(said, task['private']['answers']):g}  {task['question']}\n   {said}")


if __name__ == "__main__":
    asyncio.run(debug())
