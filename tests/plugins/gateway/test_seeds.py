"""Calls get the seeds of their place in the run, whoever comes first and whatever fails."""

import asyncio
from typing import Any

import pytest

from agl.algorithm.gateway import ModelConfig
from agl_testing.echo_llm import RawReply

from .conftest import Bench, models


class Agent:
    """Calls the model in an attempt, and tells with which seed the call arrives."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    async def attempt(self, seed: int | None = None) -> None:
        """From now on the calls are of a new attempt, of a rollout with this seed."""
        metadata = {} if seed is None else {"seed": seed}
        self.bench.rollout = await self.bench.store.start_rollout(input="task", metadata=metadata)

    async def __call__(self, content="hello", answered=None, **fields):
        messages = [{"role": "user", "content": content}]
        if answered is not None:
            messages += [{"role": "assistant", "content": answered}]
        await self.bench.post({**self.bench.ask(), "messages": messages, **fields})
        return self.bench.llm.requests[-1].get("seed")


@pytest.fixture
def ask(bench):
    (entry,) = models(bench.llm.url, send_seed=True)
    bench.proxy.update_model_list([ModelConfig(**entry)])
    return Agent(bench)


async def test_a_rollout_gets_the_same_seeds_whatever_is_answered_and_another_others(ask):
    seeds: list[Any] = []
    for of_rollout, said in ((7, "ab"), (7, "cd"), (8, "ab")):
        await ask.attempt(of_rollout)
        seeds.append([await ask(answered=text) for text in (None, *said)])
    assert seeds[0] == seeds[1]
    assert len({*seeds[0], *seeds[2]}) == 6


async def test_conversations_side_by_side_have_seeds_whoever_comes_first(ask):
    async def conversations(*names: str) -> dict[tuple[str, int], int | None]:
        await ask.attempt(7)
        return {(name, turn): await ask(name) for turn in range(2) for name in names}

    assert await conversations("a", "b") == await conversations("b", "a")


async def test_the_record_has_the_seed_and_an_agents_own_stays(ask):
    await ask.attempt(7)
    seed = await ask()
    span = await ask.bench.span()
    assert span.attributes["gen_ai.request.seed"] == seed
    await ask.attempt(7)
    assert await ask(seed=3) == 3
    assert await ask(seed=None) == seed


async def test_who_asks_again_after_a_failure_gets_the_seed_that_failed(ask):
    await ask.attempt(7)
    ask.bench.llm.reply = lambda request: RawReply(500, b"{}")
    failed = [await ask(), await ask()]
    ask.bench.llm.reply = lambda request: "fine"
    seeds = [await ask(), await ask()]
    assert failed == [seeds[0]] * 2
    assert seeds[0] != seeds[1]


async def test_calls_in_flight_together_have_different_seeds(ask):
    await ask.attempt(7)
    await asyncio.gather(*(ask() for _ in range(4)))
    assert len({request["seed"] for request in ask.bench.llm.requests}) == 4


async def test_a_rollout_without_a_seed_and_a_model_that_wants_none_get_none(ask):
    await ask.attempt()
    assert await ask() is None
    ask.bench.serve()
    await ask.attempt(7)
    assert await ask() is None
