"""A judge's turn: what fails in one group ends it for all."""

import asyncio

import pytest

import agl
from agl.errors import ConfigError, StoreUnavailableError
from agl_learning.collect.group_judge import Judging
from agl_records.credit import GroupRule


class Rule(GroupRule):
    judge = "none"

    async def score(self, task, attempts, ask):
        raise AssertionError("nobody is asked")


class Broken(agl.InMemoryLightningStore):
    """One rollout cannot be read, and others take for ever."""

    def __init__(self):
        super().__init__()
        self.both_wait, self.waiting, self.cancelled = asyncio.Event(), [], []

    async def query_spans(self, rollout_id, *args, **options):
        if rollout_id == "broken":
            await self.both_wait.wait()
            raise StoreUnavailableError("the store is gone")
        self.waiting.append(rollout_id)
        if len(self.waiting) == 2:
            self.both_wait.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.append(rollout_id)
            raise


async def test_when_one_group_fails_the_others_are_not_asked_on(collected, ended):
    store = Broken()
    names = {"broken": 0, "a": 0, "b": 1}
    batch = collected(*(ended(name, group, [([1], [7], 0.0)]) for name, group in names.items()))
    for one in batch.ended:
        one.rollout = one.rollout.model_copy(update={"mode": "train"})
    with pytest.raises(StoreUnavailableError, match="the store is gone"):
        await Judging(Rule(), store, None).judge(batch, None, None)
    assert sorted(store.cancelled) == ["a", "b"]


async def test_who_is_penalised_is_not_judged_and_a_reward_of_that_name_is_no_penalty(
    collected, ended
):
    batch = collected(*(ended(name, 0, [([1], [7], 0.0)]) for name in ("own", "late", "other")))
    own, late, _ = batch.ended
    own.rewards, late.penalty = {"penalty": 1.0}, -1.0
    for one in batch.ended:
        one.rollout = one.rollout.model_copy(update={"mode": "train"})
    await Judging(Rule(), agl.InMemoryLightningStore(), None).judge(batch, None, None)
    told = {one.rollout.rollout_id: one.rows[0].credits[0].because for one in batch.ended}
    assert "penalised" in told["late"]
    assert "penalised" not in told["own"]
    assert told["own"] == told["other"]


async def test_a_judge_that_the_gateway_refuses_takes_no_model_away(collected):
    gateway, entry = agl.LLMProxy(), {"model_name": "gpt", "litellm_params": {"model": "openai/x"}}
    gateway.add_model(entry)  # another algorithm's

    class Asking(Rule):
        judge = entry

    judging = Judging(Asking(), agl.InMemoryLightningStore(), gateway)
    with pytest.raises(ConfigError, match="another algorithm serves its model 'gpt'"):
        await judging.judge(collected(), None, {})
    assert gateway.model_names == ["gpt"]
