"""A start that goes on takes what was finished, and runs again what died with the start before."""

import asyncio
import os
import platform
from typing import Any, Literal

import pytest

import agl
from agl.errors import AlgorithmError, ConfigError
from agl.types import RolloutStatus
from agl_apo.journal import StoreJournal
from agl_runs.records import RunStart
from agl_runs.store import begin_run, end_run, query_runs
from agl_views.runs.prompt_runs import PromptRuns

UNFINISHED: list[RolloutStatus] = ["queuing", "requeuing", "preparing", "running"]


class Dying(agl.APO):
    """Dies when one of the evaluations that it has queued has ended."""

    async def search(self, session: Any) -> None:
        searching, ended = asyncio.create_task(super().search(session)), list[agl.Rollout]()
        while not ended:
            await asyncio.sleep(0.005)
            found = await session.journal.store.query_rollouts(status_in=["succeeded"])
            ended = [
                one
                for one in found
                if (one.metadata or {})["prompts"]["kind"] == PromptRuns.EVALUATION
            ]
        searching.cancel()
        raise RuntimeError("dead")


class Alive(agl.APO):
    """Goes on where ``Dying`` died: the code of an algorithm must be in the same file."""


class Logged:
    """The planted worker, and the generations of what it ran."""

    def __init__(self, worker: agl.LitAgent[Any]) -> None:
        self.generations: list[int] = []

        @agl.rollout
        async def logged(task: Any, resources: Any, rollout: agl.Rollout) -> Any:
            self.generations.append((rollout.metadata or {})["generation"])
            await asyncio.sleep(0.05)  # ten times as long as ``Dying`` waits to look
            return await worker.training_rollout_async(task, resources, rollout)

        self.agent = logged


@pytest.mark.parametrize("end", ["cancelled", "failed"])
async def test_what_a_dead_start_left_is_never_claimed_and_runs_again_in_its_place(
    fit, worker, options, end: Literal["cancelled", "failed"]
) -> None:
    options["beam_rounds"] = 1
    store, first, second = agl.InMemoryLightningStore(), Logged(worker), Logged(worker)
    with pytest.raises(AlgorithmError, match="dead"):
        await asyncio.to_thread(fit, Dying(**options), first.agent, store=store)
    left = await store.query_rollouts(status_in=UNFINISHED)
    assert len(left) > 10
    if end == "failed":  # runners that could reach the store told it so: the gateway was gone
        for rollout in left:
            await store.update_rollout(rollout.rollout_id, status=end)
    algorithm, unbroken = Alive(**options), Alive(**{**options, "run_name": "unbroken"})
    await asyncio.to_thread(fit, algorithm, second.agent, store=store)
    assert set(first.generations) == {1}
    assert set(second.generations) == {2}
    ended = [await store.get_rollout_by_id(one.rollout_id) for one in left]
    assert {one.status for one in ended if one is not None} == {end}
    await asyncio.to_thread(fit, unbroken, worker)
    # Nor is it a try that failed.
    assert algorithm.result is not None
    assert unbroken.result is not None
    same = {"resources_id": ""}
    assert {**algorithm.result.as_json(), **same} == {**unbroken.result.as_json(), **same}
    finished = [
        one
        for one in await store.query_rollouts(status_in=["succeeded"])
        if one.metadata is not None
        and (one.metadata["prompts"]["kind"], one.metadata["generation"])
        == (PromptRuns.EVALUATION, 1)
    ]
    assert len(second.generations) == unbroken.result.evaluations - len(finished)


async def test_evaluations_of_a_run_that_lives_are_not_taken_from_it(fit, worker, options) -> None:
    store = agl.InMemoryLightningStore()
    alive = RunStart(run_id="alive", algorithm="apo", pid=os.getppid(), host=platform.node())
    await begin_run(store, alive)
    metadata = {"run": "alive", **StoreJournal(store, "apo", "apo").metadata(PromptRuns.EVALUATION)}
    queued = await store.enqueue_rollout({}, metadata=metadata)
    with pytest.raises(ConfigError, match="'alive' is running in the same store"):
        await asyncio.to_thread(fit, agl.APO(**options), worker, store=store)
    with pytest.raises(ConfigError, match=r"'apo' of this store is in use by run 'alive'.*give"):
        await StoreJournal(store, "apo", "apo").cancel_leftovers(None)  # as without a trainer
    rollout = await store.get_rollout_by_id(queued.rollout_id)
    assert rollout is not None
    assert rollout.status == "queuing"
    await end_run(store, "alive", 1, "died")
    await asyncio.to_thread(fit, agl.APO(**options), worker, store=store)


def test_a_run_goes_on_by_its_id_as_what_it_was(fit, worker, options, tmp_path) -> None:
    store = agl.InMemoryLightningStore()
    options.update(beam_rounds=1, run_dir=str(tmp_path / "run"), reward_range=(0.0, 1.0))
    for resume in (False, True):
        fit(agl.APO(**options), worker, store=store, run="prompts", resume=resume)
    (run,) = asyncio.run(query_runs(store))
    assert [each.differences for each in run.generations] == [[], []]
