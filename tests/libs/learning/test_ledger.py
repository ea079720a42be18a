"""Ledgers in the store: kept per step, and read back."""

import asyncio
from pathlib import Path

import pytest

import agl
from agl.errors import LedgerError
from agl.store.base import LightningStore
from agl.store.memory import InMemoryLightningStore
from agl.store.sqlite import SqliteLightningStore
from agl.types import Advantage, Credit, Exclusion, LedgerPart
from agl_learning.ledger import Ledger, each_part
from agl_learning.records import ModelCall, TrainingRow


def call(call_id: str, rollout_id: str = "ro-1", attempt_id: str = "at-1") -> ModelCall:
    return ModelCall(call_id=call_id, rollout_id=rollout_id, attempt_id=attempt_id, sequence_id=1)


def row(*call_ids: str, rollout_id: str = "ro-1", attempt_id: str = "at-1") -> TrainingRow:
    size = len(call_ids)
    return TrainingRow(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        token_ids=[1] * size,
        logprobs=[-1.0] * size,
        call_ids=list(call_ids),
        call_ranges=[(n, n + 1) for n in range(size)],
        credits=[Credit(reward=1.0, rule="final", because="it is so")] * size,
        model_versions=[None] * size,
    )


async def run_one(store: agl.LightningStore) -> tuple[str, str]:
    await store.enqueue_rollout("task", mode="train")
    claimed = await store.dequeue_rollout()
    ids = (claimed.rollout_id, claimed.attempt.attempt_id)
    await store.update_attempt(*ids, status="succeeded")
    return ids


async def test_the_store_keeps_a_ledger_per_step(memory_store) -> None:
    ledgers = []
    for step in (1, 2):
        rollout_id, attempt_id = await run_one(memory_store)
        ledger = Ledger()
        ledger.add_call(call("a", rollout_id, attempt_id))
        ledger.train(
            row("a", rollout_id=rollout_id, attempt_id=attempt_id),
            [Advantage(value=0.5, group="", because="1 against 0.5")],
            number=0,
        )
        rollouts = await memory_store.query_rollouts(rollout_id_in=[rollout_id])
        for _ in range(2):  # a second time changes nothing
            await agl.save_ledger(memory_store, ledger, rollouts, step=step, algorithm="grpo")
        ledgers.append(ledger)
    both = Ledger()
    for ledger in ledgers:
        both.merge(ledger)
    assert await agl.load_ledger(memory_store) == both
    assert await agl.load_ledger(memory_store, step=2) == ledgers[1]
    (part,) = await agl.load_parts(memory_store, step=1)
    assert (part.mode, part.algorithm, part.step) == ("train", "grpo", 1)
    assert part.trained[0].credit.because == "it is so"
    assert part.trained[0].advantage.value == 0.5


async def test_a_rollout_that_never_ran_keeps_its_account_too(memory_store) -> None:
    rollout = await memory_store.enqueue_rollout("task", metadata={"group": 3})
    rollout = await memory_store.update_rollout(rollout.rollout_id, status="cancelled")
    ledger = Ledger()
    ledger.add_rollout(rollout.rollout_id)
    ledger.exclude(Exclusion(kind="rollout", rollout_id=rollout.rollout_id, reason="not_run"))
    await agl.save_ledger(memory_store, ledger, [rollout], step=1)
    assert await agl.load_ledger(memory_store) == ledger
    kept = await memory_store.get_rollout_by_id(rollout.rollout_id)
    assert kept.metadata["group"] == 3


async def test_an_imbalance_is_not_stored(memory_store) -> None:
    rollout_id, attempt_id = await run_one(memory_store)
    ledger = Ledger()
    ledger.add_call(call("a", rollout_id, attempt_id))
    with pytest.raises(LedgerError, match="in no bin"):
        await agl.save_ledger(memory_store, ledger, await memory_store.query_rollouts(), step=1)
    assert not await memory_store.query_ledger_parts()


async def test_a_store_without_a_ledger_gives_an_empty_one(memory_store) -> None:
    await run_one(memory_store)
    assert await agl.load_ledger(memory_store) == Ledger()


def test_accounts_of_a_file_are_read_by_key_and_those_asked_for_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agl_learning.ledger.PAGE", 2)

    async def check(store: LightningStore) -> None:
        asked: list[object] = []
        rollouts = [await store.enqueue_rollout("task") for _ in range(5)]
        for step in (1, 2):
            for run in ("a", "b"):
                parts = [
                    LedgerPart(rollout_id=one.rollout_id, run=run, step=step) for one in rollouts
                ]
                await store.add_ledger_parts(parts)
        for filters in ({}, {"run": "a"}, {"step": 2}, {"run": "b", "step": 1}, {"lost": True}):
            of_contract = list(await store.query_ledger_parts(**filters))
            asked.append(len(of_contract))
            assert [part async for part in each_part(store, **filters)] == of_contract
        assert asked == [20, 10, 10, 5, 0]

    async def both() -> None:
        for store in (SqliteLightningStore(tmp_path / "s.db"), InMemoryLightningStore()):
            await check(store)
            await store.close()

    asyncio.run(both())
