"""An agent that thinks, searches and answers in plain text: no framework, one loop.

    python retrieval_server.py       # in another terminal
    python search_r1_agent.py        # three questions, against the model at OPENAI_BASE_URL

The model writes ``<search>query</search>`` and gets ``<information>passages</information>``, as
often as it likes within ``MAX_TURNS``, and ends with ``<answer>...</answer>``; see Search-R1
(arXiv:2503.09516). What it writes stays in the conversation as it was written, so all calls of a
rollout are one training row; what was retrieved is prompt, and not learned from.
"""

import asyncio
import os
import re
from typing import Any

from qa_em import compute_score_em
from retrieval_server import PORT
from search_tasks import SearchKey, SearchTask, load_tasks

import agl

PROMPT = """Answer the question. First think between <think> and </think>. When you lack a fact,
write a query between <search> and </search> and stop: what is found comes between <information>
and </information>. Search as often as you need. When you know the answer, write it between <answer>
and </answer>, in a few words, without explanation.

Question: {question}"""
NUDGE = "That was neither <search>query</search> nor <answer>answer</answer>. Write one of them."
MAX_TURNS = 5
TOPK = 3
MAX_INFORMATION_CHARS = 4000
REQUEST_TIMEOUT_SECONDS = 600.0
"""Also to connect: the default of 5 seconds is short for a machine that trains."""


def retrieval_url() -> str:
    """Where the passages are: ``RETRIEVAL_SERVER_URL``, or where the server is by default."""
    return os.environ.get("RETRIEVAL_SERVER_URL", f"http://127.0.0.1:{PORT}")


def grade_answer(task: SearchTask, private: SearchKey, result: str) -> float:
    """The reward: 1 for the right answer, else 0. Its process is none that the agent reaches."""
    return compute_score_em(str(result), private["golden_answers"])


class SearchR1Agent(agl.LitAgent[SearchTask]):
    """Does one task.

    Args:
        max_turns: Model calls at most.
        topk: Passages for each query.
    """

    def __init__(self, max_turns: int = MAX_TURNS, topk: int = TOPK) -> None:
        super().__init__()
        self.max_turns = max_turns
        self.topk = topk

    async def rollout_async(
        self, task: SearchTask, resources: agl.NamedResources, rollout: agl.Rollout
    ) -> str:
        """What the model said at last."""
        llm = resources["main_llm"]
        assert isinstance(llm, agl.LLM)
        assert isinstance(rollout, agl.AttemptedRollout)
        if isinstance(llm, agl.ProxyLLM):
            llm = llm.with_attempted_rollout(rollout)
        return await self.answer(task["question"], llm)

    def grade(self, task: SearchTask, private: SearchKey, result: str) -> float:
        """Called in a process of its own. The agent gets the answers nowhere."""
        return grade_answer(task, private, result)

    async def answer(self, question: str, llm: agl.LLM) -> str:
        """What the model said at last."""
        import httpx
        from openai import AsyncOpenAI

        messages: list[Any] = [{"role": "user", "content": PROMPT.format(question=question)}]
        client = AsyncOpenAI(
            base_url=llm.endpoint,
            api_key=llm.api_key or "none",
            timeout=REQUEST_TIMEOUT_SECONDS,
            max_retries=0,  # the gateway retries, and records each call once
            default_headers={"x-agl-agent": "search_r1"},
        )
        said = ""
        async with client, httpx.AsyncClient(timeout=60) as http:
            for turn in range(1, self.max_turns + 1):
                completion = await client.chat.completions.create(
                    model=llm.model, messages=messages, **llm.sampling_parameters
                )
                said = completion.choices[0].message.content or ""
                if next_action(said)[0] == "answer" or turn == self.max_turns:
                    break
                messages.append({"role": "assistant", "content": said})
                messages.append({"role": "user", "content": await self._react(said, http)})
        return said

    async def _react(self, said: str, http: Any) -> str:
        kind, query = next_action(said)
        if kind != "search":
            return NUDGE
        body = {"queries": [query], "topk": self.topk}
        response = await http.post(f"{retrieval_url()}/retrieve", json=body)
        response.raise_for_status()
        (documents,) = response.json()["result"]
        found = "\n".join(document["contents"] for document in documents) or "nothing found"
        return f"<information> {found[:MAX_INFORMATION_CHARS]} </information>"


def next_action(said: str) -> tuple[str, str]:
    """``search`` or ``answer`` and what stands in its tags, whichever comes first; or nothing."""
    found = re.search(r"<(search|answer)>(.*?)</\1>", said, flags=re.DOTALL)
    return (found[1], found[2].strip()) if found else ("", "")


async def debug() -> None:
    """Answer three questions without trainer, runner or store."""
    llm = agl.LLM(
        endpoint=os.environ.get("OPENAI_BASE_URL") or os.environ["OPENAI_API_BASE"],
        api_key=os.environ.get("OPENAI_API_KEY"),
        model=os.environ.get("AGENT_MODEL", "gpt-4.1-mini"),
    )
    agent = SearchR1Agent()
    for task in load_tasks()[1][:3]:
        said = await agent.answer(task["question"], llm)
        reward = compute_score_em(said, task["private"]["golden_answers"])
        print(f"{reward:g}  {task['question']}\n   {said}")


if __name__ == "__main__":
    asyncio.run(debug())
