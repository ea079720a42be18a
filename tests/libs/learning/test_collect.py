"""The collector: tasks through the store, and what a broken-off request leaves."""

import asyncio
from typing import Any

import pytest
from tests.run_agents import cancelled
from tests.stores import opened

import agl
from agl.emitter import reward_attributes
from agl.errors import AlgorithmError, StoppedError
from agl.semconv import AGL_ANNOTATION
from agl.types import EnqueueRolloutRequest, Failure
from agl_learning.collect.collector import Collector
from agl_records.ledger.ledger import Ledger, load_parts
from agl_records.types import LedgerError
from agl_runs.failures import Failures
from agl_testing.store_steps import span_of


class NoRows(agl.TraceAdapter[Any]):
    """Reads nothing."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.ledger = Ledger()

    def adapt(self, source: list[agl.Span], /, *, attempts: list[agl.Attempt]) -> Any:
        return self


class EndsLate(agl.InMemoryLightningStore):
    """A rollout succeeds right after somebody has looked which have ended."""

    looked = False

    async def wait_for_rollouts(self, *, rollout_ids: list[str], timeout: float | None = None):
        ended = await super().wait_for_rollouts(rollout_ids=rollout_ids, timeout=timeout)
        if timeout == 0 and not self.looked:
            self.looked = True
            [claimed] = await self.dequeue_many_rollouts(limit=1)
            attempt = claimed.attempt
            await self.update_attempt(claimed.rollout_id, attempt.attempt_id, status="succeeded")
        return ended


def collector_of(store: agl.LightningStore, **options: Any) -> Collector:
    return Collector(store, None, NoRows(), agl.RolloutConfig(), **options)


async def begin(
    store: agl.LightningStore, collector: Collector | None = None, **about: Any
) -> "asyncio.Task[Any]":
    """What collects one copy of the tasks a and b, or as it is said."""
    given = {"tasks": ["a", "b"], "copies": 1, "metadata": {}, **about}
    tasks, copies, metadata = (given.pop(name) for name in ("tasks", "copies", "metadata"))
    resources = (await store.add_resources({})).resources_id
    collect = (collector or collector_of(store)).collect
    return asyncio.create_task(collect(tasks, copies, "train", resources, metadata, **given))


async def break_off(store: agl.LightningStore, collecting: asyncio.Task[Any], number: int) -> None:
    while len(await store.query_rollouts()) < number:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await cancelled(collecting)


@pytest.mark.parametrize("store", [agl.InMemoryLightningStore(), EndsLate()])
async def test_broken_off_request_cancels_what_has_not_ended(store):
    await break_off(store, await begin(store, copies=2), 4)
    statuses = sorted(rollout.status for rollout in await store.query_rollouts())
    late = isinstance(store, EndsLate)
    assert statuses == ["cancelled"] * (4 - late) + ["succeeded"] * late


async def test_who_takes_what_there_is_is_not_stopped():
    class Slow(agl.InMemoryLightningStore):
        async def wait_for_rollouts(self, **given: Any):
            await asyncio.sleep(0.01)
            return await super().wait_for_rollouts(**given)

    store, stop = Slow(), asyncio.Event()
    stop.set()
    collected = await (await begin(store, collector_of(store, asked_to_stop=stop), at_once=True))
    assert [one.rollout.status for one in collected.ended] == ["cancelled"] * 2


async def test_asked_to_stop_what_a_runner_claims_meanwhile_ends_first():
    class ClaimedMeanwhile(agl.InMemoryLightningStore):
        """A runner claims the first rollout right after somebody has looked which are queued."""

        async def query_rollouts(self, **given: Any):
            found = await super().query_rollouts(**given)
            if stop.is_set() and "rollout_id_in" in given and not claimed:
                claimed.extend(await self.dequeue_many_rollouts(limit=1))
            return found

    store, stop, claimed = ClaimedMeanwhile(), asyncio.Event(), list[agl.AttemptedRollout]()
    collecting = await begin(store, collector_of(store, asked_to_stop=stop))
    while len(await store.query_rollouts()) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    stop.set()
    while await store.query_rollouts(status_in=["queuing"]):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert not collecting.done()
    await store.update_attempt(claimed[0].rollout_id, "latest", status="succeeded")
    with pytest.raises(StoppedError):
        await collecting
    assert [one.status for one in await store.query_rollouts()] == ["succeeded", "cancelled"]


async def test_asked_again_under_its_key_nothing_runs_twice(store):
    collector = collector_of(store)
    for _ in range(2):
        await break_off(store, await begin(store, collector, copies=2, key="step-1"), 4)
    assert len(await store.query_rollouts()) == 4


async def claimed_of(store: agl.LightningStore) -> agl.AttemptedRollout:
    while (claimed := await store.dequeue_rollout()) is None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return claimed


async def end_one(store: agl.LightningStore, failure: Failure | None) -> Any:
    """Claim the next rollout and end it; what it was asked for with."""
    claimed = await claimed_of(store)
    status, error = ("succeeded", {}) if failure is None else ("failed", {"error": failure})
    await store.update_attempt(claimed.rollout_id, "latest", status=status, **error)
    return claimed.metadata


GATEWAY_GONE = Failure(boundary="model", type="GatewayError", message="it was killed")


@pytest.mark.parametrize(("again", "failed"), [(1, 0), (2, 1)])
async def test_a_rollout_whose_gateway_was_killed_runs_again_in_its_place_three_times_at_most(
    store, again, failed
):
    collecting = await begin(store, collector_of(store, seed=7), key="step-1")
    of_lost = await end_one(store, GATEWAY_GONE)
    await end_one(store, None)
    for _ in range(again):
        assert await end_one(store, GATEWAY_GONE if failed else None) == of_lost
    collected = await collecting
    assert [one.rollout.input for one in collected.ended] == ["a", "b"]
    assert collected.num_failed == failed
    assert [one.rollout.input for one in collected.lost] == ["a"] * again


@pytest.mark.parametrize("share", [0.75, 1.0, None])
async def test_a_run_ends_when_too_many_of_its_newest_rollouts_failed(store, share, monkeypatch):
    monkeypatch.setattr("agl_runs.failures.WINDOW", 4)
    policy = Failures(grader="exclude", stop_after=share)
    collector = collector_of(store, failures=policy)
    broken = [Failure(boundary="agent", type="KeyError", message=name) for name in "ab"]
    ungraded = Failure(boundary="evaluator", type="GraderError", message="no")
    for ends in ([None, ungraded], broken):  # below the window nothing is said
        collecting = await begin(store, collector)
        for end in ends:
            await end_one(store, end)
        if ends is broken and share == 0.75:
            with pytest.raises(AlgorithmError, match=r"3 of .* 4 .* 2 .* agent, as in: agent: Key"):
                await collecting
        else:
            await collecting


async def test_what_dead_starts_took_along_is_no_try_of_a_later_one(store):
    for start in (1, 2, 3):
        about = {"run": "a", "generation": start}
        collecting = await begin(store, tasks=["a"], metadata=about, key="step-1")
        if start < 3:
            await break_off(store, collecting, start)
    await end_one(store, GATEWAY_GONE)
    await end_one(store, None)
    collected = await collecting
    assert (collected.num_failed, len(collected.lost)) == (0, 3)
    counted = [one.rollout for one in collected.ended]
    with pytest.raises(LedgerError, match=rf"2 rollouts.*{collected.lost[0].rollout.rollout_id}"):
        await agl.save_ledger(store, collected.ledger, counted)
    await agl.save_ledger(store, collected.ledger, collected.rollouts)
    assert len(await load_parts(store, lost=None)) == 2


async def test_requests_of_any_kind_come_back_in_order_and_late_ones_are_cancelled(store):
    collector = Collector(store, None, None, agl.RolloutConfig())
    await store.add_resources({})
    requests = [EnqueueRolloutRequest(input=task, key=task) for task in ("quick", "slow")]
    running = asyncio.create_task(collector.run(requests, timeout_seconds=0.3))
    claimed = await claimed_of(store)
    attributes = reward_attributes({"reward": 0.5}, "reward")
    await store.add_span(span_of(claimed, AGL_ANNOTATION, attributes=attributes))
    await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
    quick, slow = found = await running
    assert [(one.rollout.input, one.reward, one.is_late, one.group) for one in found] == [
        *(("quick", 0.5, False, 0), ("slow", None, True, 1))
    ]
    assert slow.rollout.status == "cancelled"
    assert (quick.rows, slow.rows) == ([], [])


async def test_broken_off_requests_stay_for_who_asks_again_under_their_keys(store):
    collector = Collector(store, None, None, agl.RolloutConfig())
    await store.add_resources({})
    requests = [EnqueueRolloutRequest(input=task, key=task) for task in ("a", "b")]
    for _ in range(2):
        await break_off(store, asyncio.create_task(collector.run(requests)), 2)
    assert [one.status for one in await store.query_rollouts()] == ["queuing", "queuing"]


async def test_a_span_that_a_disk_damaged_costs_its_own_rollout_only(tmp_path):
    path = tmp_path / "agl.db"
    tasks = ["damaged", "whole"]
    async with opened(path) as store:
        for task in tasks:
            rollout = await store.start_rollout(task, key=f"step-1/{tasks.index(task)}/0")
            attributes = {**reward_attributes(0.5), "about": f"what is {task}"}
            await store.add_span(span_of(rollout, AGL_ANNOTATION, attributes=attributes))
            await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
    path.write_bytes(path.read_bytes().replace(b'"what is damaged"', b'"what is damaged '))
    async with opened(path) as store:
        collected = await (await begin(store, tasks=tasks, key="step-1"))
    damaged, whole = collected.ended
    assert (damaged.reward, whole.reward, whole.unusable) == (None, 0.5, None)
    assert "a record cannot be read" in str(damaged.problem)
    (exclusion,) = collected.ledger.exclusions
    assert (exclusion.rollout_id, exclusion.reason) == (damaged.rollout.rollout_id, "malformed")


async def test_rollouts_of_a_seeded_run_have_seeds_of_their_place_alone():
    async def seeds(seed: int | None, **place: Any) -> list[Any]:
        store = agl.InMemoryLightningStore()
        about = {"copies": 2, "metadata": {"run": str(id(store)), "step": 1, **place}}
        await break_off(store, await begin(store, collector_of(store, seed=seed), **about), 4)
        rollouts = await store.query_rollouts()
        return [(one.metadata or {}).get("seed") for one in rollouts]

    first = await seeds(1)
    assert len(set(first)) == 4
    assert await seeds(1) == first
    for other in (await seeds(2), await seeds(1, step=2), await seeds(1, round=1)):
        assert not {*first} & {*other}
    assert await seeds(None) == [None] * 4


async def test_rollouts_that_were_deleted_are_named(store):
    collector = collector_of(store, patience_seconds=0.1)
    collecting = await begin(store, collector, tasks=["a"], copies=2)
    while len(found := await store.query_rollouts()) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await store.delete_rollouts([found[0].rollout_id])
    async with asyncio.timeout(4):
        with pytest.raises(AlgorithmError, match=f"deleted .*: {found[0].rollout_id}. When"):
            await collecting
