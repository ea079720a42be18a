"""The collector: tasks through the store, and what a broken-off request leaves."""

import asyncio
from typing import Any

import pytest

import agl
from agl.emitter import reward_attributes
from agl.errors import AlgorithmError
from agl.semconv import AGL_ANNOTATION
from agl.types import EnqueueRolloutRequest, Failure
from agl_learning.collect.collector import Collector
from agl_records.ledger.documents import query_parts
from agl_records.ledger.ledger import Ledger
from agl_records.types import LedgerError
from agl_runs.failures import Failures


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

    async def wait_for_rollouts(self, *, rollout_ids: list[str], timeout: float | None = None):  # pyright: ignore
        ended = await super().wait_for_rollouts(rollout_ids=rollout_ids, timeout=timeout)
        if timeout == 0 and not self.looked:
            self.looked = True
            [claimed] = await self.dequeue_many_rollouts(limit=1)
            attempt = claimed.attempt
            await self.update_attempt(claimed.rollout_id, attempt.attempt_id, status="succeeded")
        return ended


async def break_off(store: agl.LightningStore, collecting: asyncio.Task[Any], number: int) -> None:
    while len(await store.query_rollouts()) < number:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    collecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await collecting


@pytest.mark.parametrize("store", [agl.InMemoryLightningStore(), EndsLate()])
async def test_broken_off_request_cancels_what_has_not_ended(store):
    collector = Collector(store, None, NoRows(), agl.RolloutConfig())
    resources = await store.add_resources({})
    collecting = asyncio.create_task(
        collector.collect(["a", "b"], 2, "train", resources.resources_id, {})
    )
    await break_off(store, collecting, 4)
    statuses = sorted(rollout.status for rollout in await store.query_rollouts())
    late = isinstance(store, EndsLate)
    assert statuses == ["cancelled"] * (4 - late) + ["succeeded"] * late


async def test_who_takes_what_there_is_is_not_stopped():
    class Slow(agl.InMemoryLightningStore):
        async def wait_for_rollouts(self, **given: Any):  # pyright: ignore
            await asyncio.sleep(0.01)
            return await super().wait_for_rollouts(**given)

    store, stop = Slow(), asyncio.Event()
    stop.set()
    collector = Collector(store, None, NoRows(), agl.RolloutConfig(), asked_to_stop=stop)
    resources = await store.add_resources({})
    collected = await collector.collect(
        ["a", "b"], 1, "train", resources.resources_id, {}, at_once=True
    )
    assert [one.rollout.status for one in collected.ended] == ["cancelled"] * 2


async def test_asked_again_under_its_key_nothing_runs_twice():
    store = agl.InMemoryLightningStore()
    collector = Collector(store, None, NoRows(), agl.RolloutConfig())
    resources = await store.add_resources({})
    for _ in range(2):
        collecting = asyncio.create_task(
            collector.collect(["a", "b"], 2, "train", resources.resources_id, {}, key="step-1")
        )
        await break_off(store, collecting, 4)
    assert len(await store.query_rollouts()) == 4


async def end_one(store: agl.LightningStore, failure: Failure | None) -> Any:
    """Claim the next rollout and end it; what it was asked for with."""
    while (claimed := await store.dequeue_rollout()) is None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    status, error = ("succeeded", {}) if failure is None else ("failed", {"error": failure})
    await store.update_attempt(claimed.rollout_id, "latest", status=status, **error)  # pyright: ignore
    return claimed.metadata


GATEWAY_GONE = Failure(boundary="model", type="GatewayError", message="it was killed")


@pytest.mark.parametrize(("again", "failed"), [(1, 0), (2, 1)])
async def test_a_rollout_whose_gateway_was_killed_runs_again_in_its_place_three_times_at_most(
    again, failed
):
    store = agl.InMemoryLightningStore()
    collector = Collector(store, None, NoRows(), agl.RolloutConfig(), seed=7)
    resources = await store.add_resources({})
    collecting = asyncio.create_task(
        collector.collect(["a", "b"], 1, "train", resources.resources_id, {}, key="step-1")
    )
    of_lost = await end_one(store, GATEWAY_GONE)
    await end_one(store, None)
    for _ in range(again):
        assert await end_one(store, GATEWAY_GONE if failed else None) == of_lost
    collected = await collecting
    assert [one.rollout.input for one in collected.ended] == ["a", "b"]
    assert collected.num_failed == failed
    assert [one.rollout.input for one in collected.lost] == ["a"] * again


@pytest.mark.parametrize("share", [0.75, 1.0, None])
async def test_a_run_ends_when_too_many_of_its_newest_rollouts_failed(share, monkeypatch):
    monkeypatch.setattr("agl_runs.failures.WINDOW", 4)
    store = agl.InMemoryLightningStore()
    policy = Failures(grader="exclude", stop_after=share)
    collector = Collector(store, None, NoRows(), agl.RolloutConfig(), failures=policy)
    resources = (await store.add_resources({})).resources_id
    broken = [Failure(boundary="agent", type="KeyError", message=name) for name in "ab"]
    ungraded = Failure(boundary="evaluator", type="GraderError", message="no")
    for ends in ([None, ungraded], broken):  # below the window nothing is said
        collecting = asyncio.create_task(collector.collect(["a", "b"], 1, "train", resources, {}))
        for end in ends:
            await end_one(store, end)
        if ends is broken and share == 0.75:
            with pytest.raises(AlgorithmError, match=r"3 of .* 4 .* 2 .* agent, as in: agent: Key"):
                await collecting
        else:
            await collecting


async def test_what_dead_starts_took_along_is_no_try_of_a_later_one():
    store = agl.InMemoryLightningStore()
    collector = Collector(store, None, NoRows(), agl.RolloutConfig())
    resources = (await store.add_resources({})).resources_id
    for start in (1, 2, 3):
        about = {"run": "a", "generation": start}
        collecting = asyncio.create_task(
            collector.collect(["a"], 1, "train", resources, about, key="step-1")
        )
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
    assert len(await query_parts(store)) == 2


async def test_requests_of_any_kind_come_back_in_order_and_late_ones_are_cancelled():
    store = agl.InMemoryLightningStore()
    collector = Collector(store, None, None, agl.RolloutConfig())
    resources = await store.add_resources({})
    requests = [
        EnqueueRolloutRequest(input=task, resources_id=resources.resources_id, key=task)
        for task in ("quick", "slow")
    ]
    running = asyncio.create_task(collector.run(requests, timeout_seconds=0.3))
    while (claimed := await store.dequeue_rollout()) is None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    rollout_id, attempt_id = claimed.rollout_id, claimed.attempt.attempt_id
    attributes = reward_attributes({"reward": 0.5}, "reward")
    span = agl.Span.from_attributes(
        name=AGL_ANNOTATION,
        attributes=attributes,
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=1,
    )
    await store.add_many_spans([span])
    await store.update_attempt(rollout_id, attempt_id, status="succeeded")
    quick, slow = await running
    assert (quick.rollout.input, quick.reward, quick.is_late, quick.group) == (
        "quick",
        0.5,
        False,
        0,
    )
    assert (slow.rollout.input, slow.reward, slow.is_late, slow.group) == ("slow", None, True, 1)
    assert slow.rollout.status == "cancelled"
    assert (quick.rows, slow.rows) == ([], [])


async def test_broken_off_requests_stay_for_who_asks_again_under_their_keys():
    store = agl.InMemoryLightningStore()
    collector = Collector(store, None, None, agl.RolloutConfig())
    await store.add_resources({})
    requests = [EnqueueRolloutRequest(input=task, key=task) for task in ("a", "b")]
    for _ in range(2):
        await break_off(store, asyncio.create_task(collector.run(requests)), 2)
    assert [one.status for one in await store.query_rollouts()] == ["queuing", "queuing"]


async def test_a_span_that_a_disk_damaged_costs_its_own_rollout_only(tmp_path):
    path = tmp_path / "agl.db"
    tasks = ["damaged", "whole"]
    store = agl.SqliteLightningStore(path)
    for task in tasks:
        rollout = await store.start_rollout(task, key=f"step-1/{tasks.index(task)}/0")
        span = agl.Span.from_attributes(
            name=AGL_ANNOTATION,
            attributes={**reward_attributes(0.5), "about": f"what is {task}"},
            rollout_id=rollout.rollout_id,
            attempt_id=rollout.attempt.attempt_id,
        )
        await store.add_many_spans([span])
        await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
    resources = await store.add_resources({})
    await store.close()
    path.write_bytes(path.read_bytes().replace(b'"what is damaged"', b'"what is damaged '))
    store = agl.SqliteLightningStore(path)
    collector = Collector(store, None, NoRows(), agl.RolloutConfig())
    collected = await collector.collect(tasks, 1, "train", resources.resources_id, {}, key="step-1")
    damaged, whole = collected.ended
    assert (damaged.reward, whole.reward, whole.unusable) == (None, 0.5, None)
    assert "a record cannot be read" in str(damaged.problem)
    (exclusion,) = collected.ledger.exclusions
    assert (exclusion.rollout_id, exclusion.reason) == (damaged.rollout.rollout_id, "malformed")
    await store.close()


async def test_rollouts_of_a_seeded_run_have_seeds_of_their_place_alone():
    async def seeds(seed: int | None, **place: Any) -> list[Any]:
        store = agl.InMemoryLightningStore()
        collector = Collector(store, None, NoRows(), agl.RolloutConfig(), seed=seed)
        resources = await store.add_resources({})
        metadata = {"run": str(id(store)), "step": 1, **place}
        collecting = asyncio.create_task(
            collector.collect(["a", "b"], 2, "train", resources.resources_id, metadata)
        )
        await break_off(store, collecting, 4)
        rollouts = await store.query_rollouts()
        return [(one.metadata or {}).get("seed") for one in rollouts]

    first = await seeds(1)
    assert len(set(first)) == 4
    assert await seeds(1) == first
    for other in (await seeds(2), await seeds(1, step=2), await seeds(1, round=1)):
        assert not {*first} & {*other}
    assert await seeds(None) == [None] * 4


async def test_rollouts_that_were_deleted_are_named():
    store = agl.InMemoryLightningStore()
    collector = Collector(store, None, NoRows(), agl.RolloutConfig(), patience_seconds=0.1)
    resources = await store.add_resources({})
    collecting = asyncio.create_task(
        collector.collect(["a"], 2, "train", resources.resources_id, {})
    )
    while len(found := await store.query_rollouts()) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await store.delete_rollouts([found[0].rollout_id])
    async with asyncio.timeout(4):
        with pytest.raises(AlgorithmError, match=f"deleted .*: {found[0].rollout_id}. When"):
            await collecting
