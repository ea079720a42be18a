"""Several answers to one request: the reward is that of the one which was used, or of none."""

import json
from collections import defaultdict
from typing import Any

import pytest
from tests.models import entry

import agl
from agl.utils.otel import make_link_attributes
from agl_records.training_data import TrainedModel
from agl_testing.echo_llm import EchoLLM, RawReply

from .collecting import collect, rows_of, settled

openai = pytest.importorskip("openai")
pytest.importorskip("agl_gateway")
agl_adapters = pytest.importorskip("agl_adapters")
TraceToChats, TraceToRows = agl_adapters.TraceToChats, agl_adapters.TraceToRows

POLICY = TrainedModel(name="policy")
END = 0
WORDS: defaultdict[str, int] = defaultdict(lambda: len(WORDS) + 1)


def tokens(text: str) -> list[int]:
    return [*(WORDS[word] for word in text.split()), END]


class Model:
    """Answers a request with ``n`` of its texts, in the order that is asked for."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts

    def __call__(self, request: dict[str, Any]) -> RawReply:
        texts = self.texts[: request.get("n") or 1]
        prompt = [id for m in request["messages"] for id in tokens(m["content"])]
        head = {"id": f"c-{len(prompt)}", "model": "policy", "prompt_token_ids": prompt}
        choices = [self.choice(n, text) for n, text in enumerate(texts)]
        if not request.get("stream"):
            return RawReply(200, json.dumps({**head, "choices": choices}).encode())
        for choice in choices:
            choice["delta"] = choice.pop("message")
        chunks = [{**head, "choices": [choice]} for choice in reversed(choices)]
        lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
        return RawReply(200, "".join([*lines, "data: [DONE]\n\n"]).encode(), "text/event-stream")

    def choice(self, number: int, text: str) -> dict[str, Any]:
        ids = tokens(text)
        return {
            "index": number,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop" if number % 2 else "length",
            "token_ids": ids,
            "logprobs": {"content": [{"logprob": -1.0 - number} for _ in ids]},
            "weight_versions": [{"version": 7 + number}],
        }


class Talk:
    """An agent's conversation."""

    def __init__(self, llm: agl.LLM) -> None:
        self.llm = llm
        self.messages: list[dict[str, str]] = [{"role": "user", "content": "which one"}]

    async def ask(self, n: int = 1, stream: bool = False) -> tuple[str, list[str]]:
        """Id and texts of the answers."""
        async with openai.AsyncOpenAI(base_url=self.llm.endpoint, api_key="x") as client:
            answer = await client.chat.completions.create(
                model=self.llm.model, messages=self.messages, n=n, stream=stream
            )
            if not stream:
                return answer.id, [choice.message.content for choice in answer.choices]
            texts, id = [""] * n, ""
            async for chunk in answer:
                id = chunk.id
                for choice in chunk.choices:
                    texts[choice.index] += choice.delta.content or ""
            return id, texts

    def go_on(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": text})
        self.messages.append({"role": "user", "content": "and"})


class AsTheyEnd(Model):
    """Lists the answers in the order in which they ended."""

    def __call__(self, request: dict[str, Any]) -> RawReply:
        reply = json.loads(super().__call__(request).body)
        return RawReply(200, json.dumps({**reply, "choices": reply["choices"][::-1]}).encode())


class CutOff(Model):
    """Its first answer was cut off at the limit, one token before its end; no later one was."""

    def choice(self, number: int, text: str) -> dict[str, Any]:
        choice = super().choice(number, text)
        if number == 0:
            choice["token_ids"].pop()
            choice["logprobs"]["content"].pop()
        return {**choice, "finish_reason": "stop" if number else "length"}


async def run(agent, *texts: str, adapter=None, model=Model):
    with EchoLLM(model(*texts)) as llm:
        gateway = agl.LLMProxy(model_list=[entry("policy", llm.url)])
        collected = await collect(agl.rollout(agent), gateway, model=POLICY, adapter=adapter)
    return settled(collected)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_choice_that_the_conversation_went_on_with_is_trained(stream: bool) -> None:
    async def agent(task: str, llm: agl.LLM) -> float:
        talk = Talk(llm)
        _, answers = await talk.ask(n=2, stream=stream)
        talk.go_on(answers[1])
        await talk.ask()
        return 1.0

    collected = await run(agent, "bad", "good")
    (row,) = rows_of(collected)
    expected = [*tokens("which one"), *tokens("good"), *tokens("and"), *tokens("bad")]
    assert row.token_ids == expected
    sampled = [row.token_ids[slice(*range)] for range in row.call_ranges]
    assert sampled == [tokens("good"), tokens("bad")]
    assert row.logprobs[3:5] == [-2.0, -2.0]
    assert (row.model_versions, row.reward) == (["8", "7"], 1.0)
    call_id = row.call_ids[0].removesuffix("#1")
    (unused,) = collected.ledger.exclusions
    assert (unused.call_id, unused.reason) == (f"{call_id}#0", "unused_choice")
    assert unused.detail == "answer 1 of 2, from 0, was used"
    assert collected.ledger.summary()["calls"] == 3


async def only_asking(task: str, llm: agl.LLM) -> float:
    await Talk(llm).ask(n=3)
    return 1.0


async def branching(task: str, llm: agl.LLM) -> float:
    _, answers = await Talk(llm).ask(n=3)
    for answer in answers[:2]:
        branch = Talk(llm)
        branch.go_on(answer)
        await branch.ask()
    return 1.0


async def naming_none(task: str, llm: agl.LLM) -> float:
    talk = Talk(llm)
    response_id, answers = await talk.ask(n=3)
    agl.emit_choice(response_id, 5)
    talk.go_on(answers[1])
    await talk.ask()
    return 1.0


NO_LATER = "no later call goes on with one of its 3 answers"


@pytest.mark.parametrize(
    ("agent", "rows", "why"),
    [
        (only_asking, 0, f"{NO_LATER}, and the agent named none (agl.emit_choice)"),
        # The branches themselves are known.
        (branching, 2, "the agent went on with 2 of its 3 answers"),
        # A name counts more than what came later, and must be one of them.
        (naming_none, 1, "the agent named answer 5 of 3, from 0"),
    ],
)
async def test_where_nobody_knows_no_choice_is_trained(agent, rows, why) -> None:
    collected = await run(agent, "one", "two", "three")
    assert len(rows_of(collected)) == rows
    assert collected.ledger.reasons() == {"unknown_choice": 3}
    assert collected.ledger.exclusions[0].detail == why


async def naming(task: str, llm: agl.LLM) -> float:
    """Takes the second answer, and says so."""
    response_id, _ = await Talk(llm).ask(n=2)
    agl.emit_choice(response_id, 1)
    return 1.0


async def test_the_agent_may_name_a_choice_by_its_index_wherever_the_server_lists_it() -> None:
    async def agent(task: str, llm: agl.LLM) -> float:
        async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key="x") as client:
            messages = Talk(llm).messages
            answer = await client.chat.completions.create(model=llm.model, messages=messages, n=2)
        assert [choice.index for choice in answer.choices] == [1, 0]
        best = next(choice for choice in answer.choices if choice.message.content == "good")
        agl.emit_choice(answer.id, best.index)
        return 1.0

    (row,) = rows_of(await run(agent, "bad", "good", model=AsTheyEnd))
    assert row.token_ids == [*tokens("which one"), *tokens("good")]
    assert row.logprobs[3:] == [-2.0, -2.0]
    assert row.model_versions == ["8"]


@pytest.mark.parametrize("said", ["message", "object", "operation"])
async def test_what_the_agent_emits_does_not_tell_as_it_may_be_what_it_rejects(said: str) -> None:
    rejected = agl.operation(lambda answer: answer)
    says = {"message": agl.emit_message, "object": agl.emit_object, "operation": rejected}

    async def agent(task: str, llm: agl.LLM) -> float:
        _, answers = await Talk(llm).ask(n=2)
        says[said](answers[0])
        return 1.0  # for the second, which it used

    collected = await run(agent, "bad", "good")
    assert rows_of(collected) == []
    assert collected.ledger.reasons() == {"unknown_choice": 2}


async def test_choices_that_say_the_same_are_one_answer() -> None:
    collected = await run(only_asking, "same", "same", "same", model=CutOff)
    (row,) = rows_of(collected)
    assert row.call_ids[0].endswith("#1")  # the first that was not cut off
    assert collected.ledger.reasons() == {"unused_choice": 2}


@pytest.mark.parametrize("truncated", ["train", "mask", "exclude"])
async def test_of_choices_that_say_the_same_that_counts_whose_tokens_go_on(truncated: str) -> None:
    async def agent(task: str, llm: agl.LLM) -> float:
        talk = Talk(llm)
        _, answers = await talk.ask(n=3)
        talk.go_on(answers[1])
        await talk.ask(n=2)
        return 1.0

    adapter = TraceToRows(truncated=truncated)
    collected = await run(agent, "good", "good", "good", adapter=adapter, model=CutOff)
    (row,) = rows_of(collected)
    assert [call_id[-2:] for call_id in row.call_ids] == ["#1", "#1"]
    assert collected.ledger.reasons() == {"unused_choice": 3}


async def test_conversations_have_the_choice_that_was_used() -> None:
    collected = await run(naming, "bad", "good", adapter=TraceToChats())
    (row,) = rows_of(collected)
    assert row.messages[-1]["content"] == "good"
    assert collected.ledger.reasons() == {"unused_choice": 1}


def test_a_choice_is_a_number_from_0() -> None:
    for wrong in (-1, True, "1", 1.0):
        with pytest.raises(ValueError, match="the number of a choice"):
            agl.emit_choice("c-1", wrong, propagate=False)  # pyright: ignore[reportArgumentType]
    span = agl.emit_choice("c-1", 1, propagate=False)
    assert span.attributes == {
        "agentlightning.chosen_choice": 1,
        **make_link_attributes({"gen_ai.response.id": "c-1"}),
    }
