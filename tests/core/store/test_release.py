"""Claims that will not be run: all of them go back, whatever became of one."""

from collections.abc import Sequence
from typing import Any, ClassVar

from tests.stores import served

import agl
from agl.errors import StoreError
from agl.execution.base import ThreadingEvent
from agl.runner.claims import Claims
from agl.store.release import release_claim
from agl_http import wire
from agl_http.layers import GRANT
from agl_http.tokens import ADMIN
from agl_server.routes import StoreRoutes
from agl_sqlite.writer import return_claims
from agl_testing.store_steps import end_of


async def queue_two(store: agl.LightningStore) -> None:
    for task in (1, 2):
        await store.enqueue_rollout(task)


async def two_claimed(store: agl.LightningStore) -> Sequence[agl.AttemptedRollout]:
    """Two claims; the rollout of the first was cancelled in this moment."""
    await queue_two(store)
    claimed = await store.dequeue_many_rollouts(limit=2, worker_id="w")
    await store.update_rollout(claimed[0].rollout_id, status="cancelled")
    return claimed


async def check_given_back(store: agl.LightningStore) -> None:
    cancelled, other = sorted(await store.query_rollouts(), key=lambda rollout: rollout.input)
    assert (cancelled.status, other.status) == ("cancelled", "requeuing")
    for rollout in (cancelled, other):
        (attempt,) = await store.query_attempts(rollout.rollout_id)
        assert (attempt.status, attempt.error and attempt.error.boundary) == ("failed", "cancelled")
    assert (await store.get_worker_by_id("w")).status == "idle"


async def test_one_that_was_cancelled_keeps_no_other(memory_store):
    for claimed in await two_claimed(memory_store):
        await release_claim(memory_store, claimed)
    await check_given_back(memory_store)


async def test_one_that_the_store_refuses_keeps_no_other():
    class Refuses(agl.InMemoryLightningStore):
        async def update_rollout(self, rollout_id: str, *args: Any, **kwargs: Any) -> agl.Rollout:
            if rollout_id == claimed[0].rollout_id:
                raise StoreError("disk full")
            return await super().update_rollout(rollout_id, *args, **kwargs)

    await queue_two(store := Refuses())
    claimed = await store.dequeue_many_rollouts(limit=2)
    for one in claimed:
        await release_claim(store, one)
    left = [rollout.status for rollout in await store.query_rollouts()]
    assert left == ["preparing", "requeuing"]


async def test_what_somebody_else_runs_by_now_is_left_alone(memory_store):
    await memory_store.enqueue_rollout(1)
    (first,) = await memory_store.dequeue_many_rollouts(worker_id="slow")
    await memory_store.update_rollout(first.rollout_id, status="requeuing")
    (second,) = await memory_store.dequeue_many_rollouts(worker_id="other")
    await release_claim(memory_store, first)
    rollout = await memory_store.get_rollout_by_id(first.rollout_id)
    assert isinstance(rollout, agl.AttemptedRollout)
    assert (rollout.status, rollout.attempt.attempt_id) == ("preparing", second.attempt.attempt_id)


async def test_server_gives_back_all_that_a_client_left():
    class Cancels(agl.InMemoryLightningStore):
        async def dequeue_many_rollouts(self, **options: Any) -> Sequence[agl.AttemptedRollout]:
            claimed = await super().dequeue_many_rollouts(**options)
            await self.update_rollout(claimed[0].rollout_id, status="cancelled")
            return claimed

    class Gone:
        scope: ClassVar[dict[str, Any]] = {GRANT: ADMIN, "headers": []}

        async def receive(self) -> dict[str, str]:
            return {"type": "http.disconnect"}

    await queue_two(store := Cancels())
    body = wire.DequeueBody(limit=2, worker_id="w", wait_seconds=5)
    routes: Any = StoreRoutes(store)
    assert await routes._claimed(Gone(), body, ()) is None
    await check_given_back(store)


async def test_client_gives_back_all_that_it_claimed():
    store = agl.InMemoryLightningStore()
    async with served(store) as (_, client):
        await queue_two(store)
        # The claim was carried out under this key, and its answer lost.
        body = {"claim": {"limit": 2, "worker_id": "w", "key": "lost"}}
        await client._transport.post("/turn", body, key="lost")
        claimed = (await store.query_rollouts()).items
        await store.update_rollout(claimed[0].rollout_id, status="cancelled")
        await client._abandon("lost")
        await check_given_back(store)


async def test_store_takes_back_a_claim_whose_rollout_was_cancelled(store):
    claimed = await two_claimed(store)
    await store._write(lambda tables, now: return_claims(tables, now, claimed))
    await check_given_back(store)


class SetMeanwhile(ThreadingEvent):
    """Another thread sets it between the first look at it and the second."""

    looks = 0

    def is_set(self) -> bool:
        self.looks += 1
        return self.looks > 1


async def test_claims_are_run_or_go_back_whenever_the_runner_is_stopped(memory_store):
    await memory_store.enqueue_rollout(1)
    claimed = await Claims(memory_store, "w", SetMeanwhile(), 9).wait(1, 0.0, lambda: False)
    assert [one.input for one in claimed] == [1]

    await memory_store.enqueue_rollout(2)
    event = SetMeanwhile()
    event.looks = -1  # `turn` looks before it asks, too
    turn = await Claims(memory_store, "w", event, 9).turn([], end_of(claimed[0]), more=True)
    assert [one.input for one in turn.claimed] == [2]
