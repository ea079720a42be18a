"""Limits on calls, tokens and money; and how a run ends that has spent them."""

import asyncio
import logging

import pytest
from tests.waiting import free_port, until

import agl
from agl.semconv import ModelCallAttributes as Key
from agl_gateway import LLMProxy
from agl_testing.echo_llm import RawReply

from .conftest import Bench, answering, models, stream_of

# "hello big world" is 6 tokens in and 4 out.
IN, OUT = 6, 4


@pytest.fixture
def limited(bench, started):
    """A bench whose proxy has other limits."""

    async def make(price=None, **budgets):
        entries = models(bench.llm.url, price=price or {})
        return await started(model_list=entries, num_retries=1, **budgets)

    return make


async def statuses(bench, count: int, **fields: object) -> list[int]:
    return [(await bench.post(bench.ask(**fields)))[0] for _ in range(count)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("budget", "name"),
    [
        ({"calls": 3}, "calls 3 of 3"),
        ({"tokens": 2 * (IN + OUT) + 1}, "tokens 30 of 21"),
        ({"cost": 70e-6}, "cost 7.8e-05 of 7e-05"),
    ],
)
async def test_over_a_limit_of_the_run_calls_get_429_that_names_it(limited, stream, budget, name):
    bench = await limited({"input": 1.0, "output": 5.0}, run_budget=budget)
    assert await statuses(bench, 4, stream=stream) == [200, 200, 200, 429]
    _, error = await bench.refused(bench.ask())
    assert f"the run has spent its budget: {name}" in error["message"]
    assert error["code"] == "budget_spent"
    assert bench.proxy.spent_budget() == name
    assert len(bench.llm.requests) == 3
    *_, refused = await bench.spans()
    assert name in refused.attributes[Key.ERROR]
    assert refused.attributes["http.response.status_code"] == 429


async def test_an_attempt_has_a_budget_of_its_own(limited):
    bench = await limited(attempt_budget={"calls": 2})
    other = await bench.other(bench.proxy)
    assert await statuses(bench, 3) == [200, 200, 429]
    assert await statuses(other, 3) == [200, 200, 429]
    assert bench.proxy.spent_budget() is None
    _, error = await bench.refused(bench.ask())
    assert f"attempt '{bench.ids[1]}' has spent its budget" in error["message"]


async def test_a_limit_on_calls_is_exact_under_concurrency(limited):
    bench = await limited(run_budget={"calls": 20})
    bench.llm.latency_seconds = 0.05
    answers = await asyncio.gather(*(bench.post(bench.ask()) for _ in range(50)))
    assert [status for status, _ in answers].count(200) == 20
    assert len(bench.llm.requests) == 20


async def test_official_clients_do_not_try_again(limited):
    openai = pytest.importorskip("openai")
    bench = await limited(run_budget={"calls": 1})
    async with openai.AsyncOpenAI(base_url=bench.url, api_key="x") as client:
        await client.chat.completions.create(**bench.ask())
        with pytest.raises(openai.RateLimitError, match="calls 1 of 1"):
            await client.chat.completions.create(**bench.ask())
    assert len(await bench.spans()) == 2


async def test_a_failed_call_costs_a_call_and_no_tokens(limited):
    bench = await limited({"input": 1.0}, run_budget={"calls": 9, "tokens": 5, "cost": 1e-6})
    bench.llm.reply = lambda request: RawReply(500, b'{"error":{"message":"no"}}')
    assert await statuses(bench, 3) == [500] * 3
    assert vars(bench.proxy._budgets.run) == {"calls": 3, "tokens": 0, "cost": 0.0}


async def test_a_stream_that_the_client_leaves_is_paid_for_as_far_as_it_came(limited):
    bench = await limited(run_budget={"tokens": 10**6})
    bench.llm.latency_seconds = 0.05
    await bench.leave()
    await until(lambda: bench.proxy._budgets.run.tokens)
    assert 43 <= bench.proxy._budgets.run.tokens < 80


async def test_where_nobody_counts_tokens_they_are_estimated(limited):
    bench = await limited(run_budget={"tokens": 10**6})
    bench.llm.reply = answering("x" * 400, finish_reason="stop")
    assert await statuses(bench, 1) == [200]
    assert 100 <= bench.proxy._budgets.run.tokens < 200


# --- the end of a run


@agl.rollout
async def agent(task: str, llm: agl.LLM) -> float:
    status, _, _ = await stream_of(f"{llm.endpoint}/chat/completions", Bench.ask(task))
    assert status == 200
    return 1.0


def trainer(echo_llm, algorithm: object, strategy: str = "shm") -> agl.Trainer:
    proxy = LLMProxy(free_port(), models(echo_llm.url), open=True, run_budget={"calls": 3})
    given = {"llm_proxy": proxy, "initial_resources": {"llm": proxy.as_resource()}}
    return agl.Trainer(algorithm=algorithm, strategy=strategy, **given)


@pytest.mark.parametrize("strategy", ["shm", "cs"])
def test_baseline_ends_with_what_it_has(echo_llm, strategy, caplog):
    # The trainer starts the gateway beside its store; under cs the runners are other processes.
    baseline = agl.Baseline(max_queue_length=1)
    with caplog.at_level(logging.INFO, "agl"):
        trainer(echo_llm, baseline, strategy).fit(agent, [f"task {n}" for n in range(20)])
    succeeded = [reward for reward in baseline.rewards.values() if reward == 1.0]
    assert len(succeeded) == 3
    assert len(baseline.rewards) < 6
    assert "the budget of the run is spent (calls 3 of 3)" in caplog.text


def test_an_algorithm_that_fails_on_a_spent_budget_ends_the_run_in_peace(echo_llm, caplog):
    openai = pytest.importorskip("openai")

    class Optimiser(agl.Algorithm):
        answers = 0

        async def run(self, train_dataset=None, val_dataset=None) -> None:
            llm = self.get_llm_proxy().as_resource()
            async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key="x") as client:
                while True:
                    await client.chat.completions.create(**Bench.ask("better prompt"))
                    self.answers += 1

    optimiser = Optimiser()
    with caplog.at_level(logging.INFO, "agl"):
        trainer(echo_llm, optimiser).fit(agent, ["task"])
    assert optimiser.answers == 3
    assert "the budget of the run is spent (calls 3 of 3)" in caplog.text
