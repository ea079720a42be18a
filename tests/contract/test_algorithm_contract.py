"""The contract of algorithms over small ones, and algorithms that break it."""

import pytest

import agl
from agl.errors import AglError
from agl_testing.algorithm_contract import AlgorithmContract


class Mean(agl.Algorithm):
    """The smallest third-party algorithm; a subclass breaks a part of it."""

    publishes = (agl.PromptTemplate,)
    growing_options = frozenset({"epochs"})

    def __init__(self, epochs: int = 1):
        self.epochs = epochs

    async def run(self, train_dataset=None, val_dataset=None):
        await self.publish_resources({"prompt": agl.PromptTemplate(template="Be brief.")})
        for mode, tasks in (("train", train_dataset), ("val", val_dataset)):
            await self.measure(mode, tasks or ())

    async def measure(self, mode, tasks):
        store = self.get_store()
        requests = [agl.EnqueueRolloutRequest(input=task, mode=mode) for task in tasks]
        queued = await store.enqueue_many_rollouts(requests)
        ended = await store.wait_for_rollouts(rollout_ids=[one.rollout_id for one in queued])
        self.mean = self.mean_of([one for one in ended if one.status == "succeeded"])

    def mean_of(self, rollouts):
        return sum(one.reward for one in rollouts)


class TestMean(AlgorithmContract):
    component = Mean


class TestBaseline(AlgorithmContract):
    component = "baseline"


class DoesNotWait(Mean):
    async def measure(self, mode, tasks):
        requests = [agl.EnqueueRolloutRequest(input=task, mode=mode) for task in [*tasks] * 20]
        await self.get_store().enqueue_many_rollouts(requests)


class WantsAllRewards(Mean):
    async def measure(self, mode, tasks):
        await super().measure(mode, tasks)
        rollouts = await self.get_store().query_rollouts()
        self.mean = self.mean_of(rollouts)


class LeavesValOut(Mean):
    async def run(self, train_dataset=None, val_dataset=None):
        await self.measure("train", train_dataset)


class Remembers(Mean):
    is_done = False

    async def measure(self, mode, tasks):
        if not self.is_done:
            await super().measure(mode, tasks)
        self.is_done = True


class PublishesMore(Mean):
    publishes = ()


class NamesNoOption(Mean):
    safe_options = frozenset({"epoch"})


@pytest.mark.parametrize(
    ("claim", "broken"),
    [
        ("all_rollouts_have_ended_at_its_end", DoesNotWait),
        ("failed_rollouts_do_not_end_the_run", WantsAllRewards),
        ("tasks_to_measure_with_are_used_or_refused", LeavesValOut),
        ("it_runs_twice", Remembers),
        ("it_publishes_no_more_than_it_says", PublishesMore),
        ("options_that_may_change_are_its_own", NamesNoOption),
    ],
)
def test_an_algorithm_that_breaks_a_claim_is_caught(claim, broken, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((AssertionError, AglError)):
        getattr(AlgorithmContract(), f"test_{claim}")(broken())
