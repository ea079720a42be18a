"""A judge's turn: what fails in one group ends it for all."""

import asyncio

import pytest

import agl
from agl.errors import StoreUnavailableError
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
