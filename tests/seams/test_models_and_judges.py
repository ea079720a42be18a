"""Only what the trained model did is trained: other models and judges have bins of their own."""

import asyncio
import contextvars
import itertools
import logging
import time

import pytest
from tests.models import answer_of, entry

import agl
from agl.emitter import reward_attributes
from agl.types import Attempt, Span
from agl_records.training_data import TrainedModel
from agl_testing.echo_llm import EchoLLM

from .collecting import collect, rows_of, settled

openai = pytest.importorskip("openai")
pytest.importorskip("agl_gateway")
TraceToRows = pytest.importorskip("agl_adapters").TraceToRows
POLICY = TrainedModel(name="policy")


def two_models(llm: EchoLLM) -> agl.LLMProxy:
    return agl.LLMProxy(model_list=[entry("policy", llm.url), entry("judge", llm.url)])


async def ask(llm: agl.LLM, model: str, text: str) -> str:
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key="x") as client:
        messages = [{"role": "user", "content": text}]
        answer = await client.chat.completions.create(model=model, messages=messages)
        return answer.choices[0].message.content or ""


@agl.rollout
async def judged(task: str, llm: agl.LLM) -> None:
    said = await ask(llm, llm.model, "what is two and two")
    verdict = await ask(llm, "judge", f"is it right: {said}")
    agl.emit_reward(float("four" in said) + float("yes" in verdict))


def answers(request: dict) -> str:
    return "yes indeed" if "right" in request["messages"][0]["content"] else "it is four"


@pytest.mark.parametrize("credit", ["final", "per_call", "discounted", "stepwise"])
async def test_the_judges_call_is_in_a_bin_of_its_own_and_gets_no_reward(credit: str) -> None:
    with EchoLLM(answers) as llm:
        adapter = TraceToRows(credit=credit)
        collected = await collect(judged, two_models(llm), model=POLICY, adapter=adapter)
    # The reward came after the judge's call, and is about the policy's.
    (row,) = rows_of(settled(collected))
    assert row.reward == 2.0
    assert collected.ledger.reasons() == {"other_model": 1}
    (excluded,) = collected.ledger.exclusions
    assert excluded.detail == "its model is 'judge'; 'policy' is trained"
    assert collected.ledger.summary()["rewards"] == {"total": 1, "used": 1, "excluded": {}}


class Old(agl.TraceAdapter[object]):
    """An adapter of before there was ``model``."""

    def adapt(self, source: list[Span], /, attempts: list[Attempt]) -> object:
        return TraceToRows().adapt(source, attempts=attempts)


async def test_an_adapter_that_knows_no_models_works_and_says_what_that_means(caplog) -> None:
    with caplog.at_level(logging.WARNING, "agl.learning"), EchoLLM(answers) as llm:
        collected = await collect(judged, two_models(llm), model=POLICY, adapter=Old())
    assert sum(len(row.call_ids) for row in rows_of(collected)) == 2
    assert "the adapter Old does not take model=" in caplog.text


@agl.rollout
async def scoring_itself(task: str, llm: agl.LLM) -> None:
    await answer_of(llm, "step one")
    with agl.operation(name="score") as operation:
        await answer_of(llm, "judge it")
        if task == "beside":
            copied = contextvars.Context()  # as of a thread that began before
            await asyncio.create_task(answer_of(llm, "step two"), context=copied)
        operation.record_attributes(reward_attributes(1.0))


@agl.rollout
async def scoring_by_rule(task: str, llm: agl.LLM) -> None:
    await answer_of(llm, "step one")
    with agl.operation(name="score") as operation:
        operation.record_attributes(reward_attributes(1.0))


@pytest.mark.parametrize(
    ("agent", "task", "skew", "trained", "perhaps"),
    [
        (scoring_itself, "alone", 0.0, 1, 1),
        (scoring_itself, "beside", 0.0, 1, 2),
        (scoring_itself, "alone", -30.0, 0, 2),
        (scoring_itself, "alone", 30.0, 0, 2),
        (scoring_by_rule, "alone", 0.0, 1, 0),
        (scoring_by_rule, "alone", -30.0, 1, 0),
    ],
)
async def test_what_may_be_a_judges_call_is_neither_trained_nor_called_a_judges(
    agent, task: str, skew: float, trained: int, perhaps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        """The gateway's machine: a call lasts longer than the rule, and no longer than a judge."""

        perf_counter = itertools.count(step=1 if agent is scoring_by_rule else 0).__next__

        @staticmethod
        def time() -> float:
            return time.time() + skew

    monkeypatch.setattr("agl_gateway.records.time", Clock)
    with EchoLLM(lambda request: "yes") as llm:
        collected = await collect(agent, two_models(llm), model=POLICY, tasks=(task,))
    assert len(rows_of(settled(collected))) == trained
    assert collected.ledger.reasons().get("perhaps_judge", 0) == perhaps
    assert "judge" not in collected.ledger.reasons()
