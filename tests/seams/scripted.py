"""Agents of known behaviour, so that a person can say what becomes of each of their calls.

A task names its case, and one agent plays them all. The rollouts of a task get the rewards 1, 0 and
0 in the order in which they begin, so that each has an advantage among its siblings; what the model
answers does not matter. Unless a case says otherwise, a rollout is one call of the agent "writer".
"""

import threading
from collections import Counter
from typing import Any

import aiohttp

import agl
from agl_testing.echo_llm import EchoLLM, RawReply

COPIES = 3
REWARDS = (1.0, 0.0, 0.0)
JUDGE = "judge"
UNAVAILABLE = "answer with 503"


TABLE = {
    "plain": {"trained": 3},
    # The judge is another model than the one that is trained.
    "judged_by_another_model": {"trained": 3, "other_model": 3},
    # Of two choices the one that was used, and the call after it.
    "second_choice": {"trained": 6, "unused_choice": 3},
    "first_attempt_fails": {"trained": 3, "superseded_attempt": 3},
    "two_agents": {"trained": 3, "agent_not_selected": 3},
    # Two rollouts of three remain. Of the third one nothing is trained; its failed call would not
    # have been, either way: it is the judge's.
    "swallowed_503": {"trained": 2, "other_model": 3, "infrastructure": 1},
    "truncated": {"trained": 3, "truncated": 3},
}
"""Case -> bin -> number of model calls, in a group of three rollouts.

Only the calls of the agent "writer" to the policy are to be trained, and truncated answers are not.
"""

CASES = list(TABLE)


def judge() -> EchoLLM:
    """The user's own model: says what it is told, unless it is told to fail."""

    def reply(request: dict[str, Any]) -> str | RawReply:
        said = request["messages"][-1]["content"]
        if said == UNAVAILABLE:
            return RawReply(status=503, body=b'{"error": {"message": "out of order"}}')
        return said

    return EchoLLM(reply)


def judge_entry(server: EchoLLM) -> dict[str, Any]:
    """It, as the user writes it into the gateway's list of models."""
    params = {"model": f"hosted_vllm/{JUDGE}", "api_base": server.url}
    return {"model_name": JUDGE, "litellm_params": params}


class Conversation:
    """One attempt's calls to its gateway."""

    def __init__(self, llm: agl.LLM, task: dict[str, Any]) -> None:
        self.llm = llm
        self.next_words = "and"
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": task["words"]}]

    async def ask(self, *, agent="writer", model=None, messages=None, **options):
        """Status and body of one chat completion."""
        body = {
            "model": model or self.llm.model,
            "messages": messages or self.messages,
            **self.llm.sampling_parameters,
            **options,
        }
        key = {"authorization": f"Bearer {self.llm.api_key}"} if self.llm.api_key else {}
        async with (
            aiohttp.ClientSession(headers={"x-agl-agent": agent, **key}) as session,
            session.post(f"{self.llm.endpoint}/chat/completions", json=body) as response,
        ):
            return response.status, await response.json()

    async def say(self, **options: Any) -> dict[str, Any]:
        """Ask, and go on from the first choice."""
        status, answer = await self.ask(**options)
        assert status == 200, answer
        self.go_on(answer["choices"][0]["message"])
        return answer

    def go_on(self, message: dict[str, Any]) -> None:
        """What is asked next begins with this answer."""
        self.messages += [message, {"role": "user", "content": self.next_words}]

    async def judge(self, words: str) -> int:
        """The status of a call to the user's own model."""
        messages = [{"role": "user", "content": words}]
        return (await self.ask(model=JUDGE, agent="writer", messages=messages))[0]


class Script:
    """What the agent does in each case; one object for one run in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._copies: dict[str, list[str]] = {}
        self.judged: Counter[int] = Counter()
        """Status of the judge's answers -> how many."""

    def copy(self, case: str, rollout_id: str) -> int:
        """Which rollout of its case this is, from 0; steps come one after the other."""
        with self._lock:
            begun = self._copies.setdefault(case, [])
            if rollout_id not in begun:
                begun.append(rollout_id)
            return begun.index(rollout_id) % COPIES

    def converse(self, llm: agl.LLM, task: dict[str, Any], copy: int) -> Conversation:
        """What an attempt says begins so."""
        return Conversation(llm, task)

    async def play(self, task: dict[str, Any], llm: agl.LLM, rollout: Any) -> float | None:
        """One attempt; the final reward."""
        copy = self.copy(task["case"], rollout.rollout_id)
        talk = self.converse(llm, task, copy)
        given = await getattr(self, task["case"])(talk, copy, rollout)
        return REWARDS[copy] if given is None else None

    async def plain(self, talk: Conversation, copy: int, rollout: Any) -> None:
        """One call."""
        await talk.say()

    async def judged_by_another_model(self, talk: Conversation, copy: int, rollout: Any) -> None:
        """One call to the model that is trained, one to the user's judge."""
        await talk.say()
        self.judged[await talk.judge("well done")] += 1

    async def second_choice(self, talk: Conversation, copy: int, rollout: Any) -> None:
        """Two choices, of which the second is used: the next call goes on from it."""
        _, answer = await talk.ask(n=2)
        talk.go_on(answer["choices"][1]["message"])
        await talk.say()

    async def first_attempt_fails(self, talk: Conversation, copy: int, rollout: Any) -> None:
        """An attempt with a call and a reward that fails, and then a good one."""
        await talk.say()
        if rollout.attempt.sequence_id == 1:
            agl.emit_reward(5.0)
            raise RuntimeError("the first attempt always fails")

    async def two_agents(self, talk: Conversation, copy: int, rollout: Any) -> None:
        """The agent that is trained, and a critic that is not."""
        await talk.say()
        await talk.say(agent="critic")

    async def swallowed_503(self, talk: Conversation, copy: int, rollout: Any) -> None:
        """The last rollout does not hear that its judge is out of order."""
        await talk.say()
        self.judged[await talk.judge(UNAVAILABLE if copy == 2 else "well done")] += 1

    async def truncated(self, talk: Conversation, copy: int, rollout: Any) -> None:
        """The first answer ends at its limit of tokens, the second by itself."""
        await talk.say(max_tokens=1)
        await talk.say()

    async def credit_per_call(self, talk: Conversation, copy: int, rollout: Any) -> bool:
        """Each call has a reward of its own, and the second one the same in every rollout."""
        await talk.say()
        agl.emit_reward(REWARDS[copy])
        await talk.say()
        agl.emit_reward(0.25)
        return True


def agent_of(script: Script) -> agl.LitAgent[Any]:
    """The agent that plays ``script``."""

    @agl.rollout
    async def scripted(task: dict, llm: agl.LLM, rollout: agl.Rollout) -> float | None:
        return await script.play(task, llm, rollout)

    return scripted


async def accounts(store: agl.LightningStore) -> dict[str, dict[str, int]]:
    """Case -> bin -> number of calls, of everything that the store's ledger knows."""
    found: dict[str, Counter[str]] = {}
    rollouts = {rollout.rollout_id: rollout for rollout in await store.query_rollouts()}
    for part in await agl.load_parts(store):
        bins = found.setdefault(rollouts[part.rollout_id].input["case"], Counter())
        bins.update("trained" for item in part.trained if item.kind == "call")
        bins.update(item.reason for item in part.excluded if item.kind == "call")
    return {case: dict(bins) for case, bins in found.items()}
