"""A judge's turn: what fails in one group ends it for all."""

import asyncio
import hashlib
import json

import pytest

import agl
from agl.errors import ConfigError, StoreUnavailableError
from agl_learning.collect.group_judge import Judging
from agl_records.credit import GroupRule
from agl_testing.traces import Trace


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


async def test_of_what_cannot_be_read_nothing_is_shown_and_all_of_it_is_booked(collected, ended):
    store = agl.InMemoryLightningStore()
    names = [await begun(store), await begun(store)]
    ids = sorted(name for name, _ in names)
    key = f"judge/{hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:24]}/0"
    judge = await begun(store, key)
    bad = [{"content": "no role"}], [{"role": "nobody", "content": "so what"}]
    for n, (rollout_id, attempt_id) in enumerate([*names, judge]):
        trace = Trace(attempt_id)
        for messages in (None, bad[n % 2], [{"role": "user", "content": str(n)}]):
            trace.gateway([1], [2], messages=messages, rollout_id=rollout_id)
        await store.add_many_spans(trace.spans)
    batch = collected(*(ended(name, 0, [([1], [7], 0.0)]) for name in ids))
    for one in batch.ended:
        one.rollout = one.rollout.model_copy(update={"mode": "train"})
        one.rows = [
            row.model_copy(update={"attempt_id": dict(names)[row.rollout_id]}) for row in one.rows
        ]
    scores = [(0.0, "bad"), (1.0, "good")]
    await store.update_attempt(*judge, metadata={"scores": scores}, status="succeeded")
    await Judging(Rule(), store, None).judge(batch, None, None)
    assert sorted(one.reward for one in batch.ended) == [0.0, 1.0]
    assert batch.ledger.reasons() == {"judge": 3}


async def begun(store, key=None):
    """Ids of a rollout, and of an attempt of it that runs."""
    rollout = await store.start_rollout(None, key=key)
    return rollout.rollout_id, rollout.attempt.attempt_id


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


@pytest.mark.plugins
async def test_a_judge_that_the_gateway_refuses_takes_no_model_away(collected):
    pytest.importorskip("agl_gateway")
    gateway, entry = agl.LLMProxy(), {"model_name": "gpt", "litellm_params": {"model": "openai/x"}}
    gateway.add_model(entry)  # another algorithm's

    class Asking(Rule):
        judge = entry

    judging = Judging(Asking(), agl.InMemoryLightningStore(), gateway)
    with pytest.raises(ConfigError, match="another algorithm serves its model 'gpt'"):
        await judging.judge(collected(), None, {})
    assert gateway.model_names == ["gpt"]
