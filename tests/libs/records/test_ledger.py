"""Ledgers in the store: kept per step, and read back."""

from typing import Any

import pytest

import agl
from agl.types import Document
from agl_records.ledger.documents import count_parts, each_part, put_parts
from agl_records.ledger.ledger import Ledger, load_parts
from agl_records.ledger.tables import Accounts
from agl_records.training_data import ModelCall, TrainingRow
from agl_records.types import (
    Advantage,
    Credit,
    Exclusion,
    LedgerError,
    LedgerItem,
    LedgerPart,
    Trained,
)

ADVANTAGE = Advantage(value=0.5, group="", because="1 against 0.5", estimator="grpo")


def call(call_id: str, rollout_id: str = "ro-1", attempt_id: str = "at-1") -> ModelCall:
    return ModelCall(call_id=call_id, rollout_id=rollout_id, attempt_id=attempt_id, sequence_id=1)


def row(*call_ids: str, rollout_id: str = "ro-1", attempt_id: str = "at-1") -> TrainingRow:
    size = len(call_ids)
    tokens = {"token_ids": [1] * size, "logprobs": [-1.0] * size, "model_versions": [None] * size}
    calls = {"call_ids": [*call_ids], "call_ranges": [(n, n + 1) for n in range(size)]}
    credits = [Credit(reward=1.0, rule="final", because="it is so")] * size
    ids = {"rollout_id": rollout_id, "attempt_id": attempt_id}
    return TrainingRow(**ids, **tokens, **calls, credits=credits)


async def run_one(store: agl.LightningStore) -> tuple[str, str]:
    await store.enqueue_rollout("task", mode="train")
    claimed = await store.dequeue_rollout()
    ids = (claimed.rollout_id, claimed.attempt.attempt_id)
    await store.update_attempt(*ids, status="succeeded")
    return ids


async def test_the_store_keeps_a_ledger_per_step(memory_store):
    ledgers = []
    for step in (1, 2):
        rollout_id, attempt_id = await run_one(memory_store)
        ledger = Ledger()
        ledger.add_call(call("a", rollout_id, attempt_id))
        of_rollout = row("a", rollout_id=rollout_id, attempt_id=attempt_id)
        ledger.train(of_rollout, [ADVANTAGE], number=0)
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


async def test_a_rollout_that_never_ran_keeps_its_account_too(memory_store):
    rollout = await memory_store.enqueue_rollout("task", metadata={"group": 3})
    rollout = await memory_store.update_rollout(rollout.rollout_id, status="cancelled")
    ledger = Ledger()
    ledger.add_rollout(rollout.rollout_id)
    ledger.exclude(Exclusion(kind="rollout", rollout_id=rollout.rollout_id, reason="not_run"))
    await agl.save_ledger(memory_store, ledger, [rollout], step=1)
    assert await agl.load_ledger(memory_store) == ledger
    kept = await memory_store.get_rollout_by_id(rollout.rollout_id)
    assert kept.metadata["group"] == 3


async def test_an_imbalance_is_not_stored(memory_store):
    rollout_id, attempt_id = await run_one(memory_store)
    ledger = Ledger()
    ledger.add_call(call("a", rollout_id, attempt_id))
    with pytest.raises(LedgerError, match="in no bin"):
        await agl.save_ledger(memory_store, ledger, await memory_store.query_rollouts(), step=1)
    assert not await load_parts(memory_store, lost=None)


async def test_a_store_without_a_ledger_gives_an_empty_one(memory_store):
    await run_one(memory_store)
    assert await agl.load_ledger(memory_store) == Ledger()


def part_of(rollout_id: str, step: int | None = 1, **about: Any) -> LedgerPart:
    """An account of one trained call and one rollout."""
    made: dict[str, Any] = {"rollout_id": rollout_id, "attempt_id": "at", "call_id": "call"}
    return LedgerPart(
        rollout_id=rollout_id,
        step=step,
        items=[LedgerItem(**made), LedgerItem(kind="rollout", rollout_id=rollout_id)],
        trained=[Trained(**made, row=0, credit=Credit(reward=1.0), model_version="3")],
        **{"mode": "train", "algorithm": "toy", **about},
    )


async def test_account_that_is_kept_again_is_there_once(memory_store):
    rollout_id = (await memory_store.enqueue_rollout("task")).rollout_id
    first, second = part_of(rollout_id, 1), part_of(rollout_id, 2)
    await put_parts(memory_store, [first, second])
    await put_parts(memory_store, [first])  # the answer was lost
    assert await load_parts(memory_store, lost=None) == [first, second]
    changed = first.model_copy(update={"generation": 2, "trained": []})
    await put_parts(memory_store, [changed])
    await put_parts(memory_store, [first])  # late, of a process that was thought dead
    assert await load_parts(memory_store, lost=None) == [changed, second]


async def test_accounts_of_other_runs_algorithms_and_steps_stand_beside_it(memory_store):
    rollout_id = (await memory_store.enqueue_rollout("task")).rollout_id
    changes = [{"step": None}, {"algorithm": None}, {"step": 0}, {}, {"run": "a/b"}, {"run": "b"}]
    parts = [part_of(rollout_id, **{"step": 1, **change}) for change in changes]
    await put_parts(memory_store, parts)
    found = await load_parts(memory_store, lost=None)
    assert sorted(found, key=repr) == sorted(parts, key=repr)


async def test_accounts_are_read_page_by_page_and_those_asked_for_alone(memory_store, monkeypatch):
    monkeypatch.setattr("agl_records.ledger.documents.PAGE", 2)
    rollouts = [await memory_store.enqueue_rollout("task") for _ in range(5)]
    ids = [one.rollout_id for one in rollouts]
    for step in (1, 2):
        for run in ("a", "ab"):
            await put_parts(memory_store, [part_of(one, step, run=run) for one in ids])
    of_run, of_step = ({"run": "a"}, 10), ({"step": 2}, 10)
    of_both, lost = ({"run": "ab", "step": 1}, 5), ({"lost": True}, 0)
    for filters, number in (({}, 20), of_run, of_step, of_both, lost):
        found = await load_parts(memory_store, **{"lost": None, **filters})
        assert len({(one.run, one.step, one.rollout_id) for one in found}) == number
        assert [part async for part in each_part(memory_store, **filters)] == found
    assert len(await load_parts(memory_store, ids[:2])) == 8
    assert await load_parts(memory_store, [], lost=None) == []
    assert await count_parts(memory_store, run="a", step=2) == 5
    await memory_store.delete_rollouts(ids[:4])
    assert await count_parts(memory_store) == 4


@pytest.mark.parametrize("runs", [["a", "b"], ["a"]])
async def test_a_step_of_known_runs_is_found_without_reading_other_steps(
    memory_store, monkeypatch, runs
):
    rollout_id = (await memory_store.enqueue_rollout("task")).rollout_id
    for run in ("a", "b"):
        await put_parts(memory_store, [part_of(rollout_id, step, run=run) for step in range(9)])
    about = {"algorithm": "toy", "status": "finished", "create_time": 0.0}
    await memory_store.put_documents([Document(kind="run", key=one, body=about) for one in runs])
    read, query = [], memory_store.query_documents

    async def counted(kind, **asked):
        found = await query(kind, **asked)
        read.extend(found if kind == "ledger" and asked.get("limit") != 1 else [])
        return found

    monkeypatch.setattr(memory_store, "query_documents", counted)
    accounts = await Accounts.read(memory_store, step=3)
    assert sorted(part.run for part in accounts.parts) == ["a", "b"]
    assert len(read) == (2 if len(runs) == 2 else 18)


async def test_account_that_cannot_be_read_says_so_and_spares_the_others(memory_store):
    rollout_id = (await memory_store.enqueue_rollout("task")).rollout_id
    await put_parts(memory_store, [part_of(rollout_id, step) for step in (1, 2)])
    odd = {"body": {"items": 7, "step": 0}, "rollout_id": rollout_id}
    await memory_store.put_documents([Document(kind="ledger", key="/0", **odd)])
    parts = await load_parts(memory_store, lost=None)
    assert {part.step: bool(part.problem) for part in parts} == {0: True, 1: False, 2: False}
