"""The store contract over every store that ships with the core."""

import asyncio

import pytest

from agl.store.engine import operations
from agl.store.memory import InMemoryLightningStore
from agl_sqlite import SqliteLightningStore
from agl_testing.store_contract import StoreContract


class TestMemory(StoreContract):
    component = InMemoryLightningStore


class TestSqlite(StoreContract):
    component = SqliteLightningStore


class KeepsSpansOfDeletedRollouts(InMemoryLightningStore):
    num_kept = 0

    async def delete_rollouts(self, rollout_ids, *, only_count=False):
        counts = await super().delete_rollouts(rollout_ids, only_count=only_count)
        self.num_kept += 0 if only_count else counts["spans"]
        return counts

    async def statistics(self):
        counts = await super().statistics()
        return {**counts, "total_spans": counts["total_spans"] + self.num_kept}


class WakesNobody(InMemoryLightningStore):
    async def close(self):
        pass


@pytest.mark.parametrize("claim", ["end_of_its_attempt", "next_attempt_began"])
async def test_a_store_that_marks_no_late_span_is_caught(claim, monkeypatch):
    monkeypatch.setattr(operations, "late", lambda span, *_: span)
    test = getattr(StoreContract(), f"test_span_after_the_{claim}_is_late")
    with pytest.raises(AssertionError):
        await test(InMemoryLightningStore())


async def test_a_store_that_keeps_spans_of_deleted_rollouts_is_caught():
    contract, store = StoreContract(), KeepsSpansOfDeletedRollouts()
    with pytest.raises(AssertionError):
        await contract.test_rollouts_are_deleted_with_all_they_own(store)


async def test_a_store_that_wakes_nobody_at_its_close_is_caught():
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await StoreContract().test_close_wakes_who_waits(WakesNobody())
