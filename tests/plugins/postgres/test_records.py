"""What a text of PostgreSQL cannot hold, and what a store keeps while nothing happens."""

import asyncio
import enum

import pytest

from agl.errors import InvalidRecordError
from agl.types import Document, RolloutConfig
from agl_postgres import tables
from agl_postgres.lookups import PostgresLookups
from agl_testing.store_steps import span_of


@pytest.mark.parametrize(
    "metadata",
    [
        {"run": "r", "note": "a\0b"},
        {"run": "r", "\0": 1},
        {"run": "r", "note": "\\u0000 \\\\u0000 \\"},
        {"run": "r\\u0000"},
        {"run": 'r"'},
    ],
)
async def test_metadata_with_a_nul_is_kept_and_found_by_its_run(store, metadata):
    rollout = await store.enqueue_rollout(1, metadata=metadata)
    await store.enqueue_rollout(1, metadata={"run": "other"})
    (found,) = await store.query_rollouts(run=metadata["run"])
    assert (found.rollout_id, found.metadata) == (rollout.rollout_id, metadata)


async def test_the_index_finds_a_run(store):
    with store._database.connect() as connection:
        connection.execute("SET enable_seqscan = off")
        sql = f"EXPLAIN SELECT FROM rollout r WHERE {PostgresLookups.of_run} = 'r'"
        plan = connection.execute(sql).fetchall()
    assert "replace" in str(plan)
    assert "Index Cond" in str(plan)


async def test_a_run_with_a_nul_is_kept(store):
    rollout = await store.enqueue_rollout(1, metadata={"run": "a\0b"})
    found = await store.get_rollout_by_id(rollout.rollout_id)
    assert found.metadata == {"run": "a\0b"}
    assert not await store.query_rollouts(run="a\0b")


async def test_a_span_id_with_a_nul_moves_no_other(store):
    started = [await store.start_rollout(n) for n in range(3)]
    good = list(map(span_of, started))
    await asyncio.gather(*map(store.add_span, good))
    bad = span_of(started[0]).model_copy(update={"span_id": "a\0b"})
    outcomes = await asyncio.gather(
        *(store.add_span(one) for one in [bad, *good]), return_exceptions=True
    )
    assert isinstance(outcomes[0], InvalidRecordError)
    assert outcomes[1:] == [None, None, None]
    assert (await store.statistics())["total_spans"] == 3


async def test_texts_of_other_types_are_found_by_what_they_say(store):
    class Kind(str, enum.Enum):  # noqa: UP042 (whose str() is its name)
        KEY = 'a"\\{,}b'
        STATUS = "queuing"

    await store.put_documents([Document(kind="d", key=Kind.KEY.value, body=1)])
    await store.enqueue_rollout(1, key=Kind.KEY)
    assert len(await store.query_rollouts(status_in=[Kind.STATUS])) == 1
    assert len(await store.query_documents("d", key_in=[Kind.KEY])) == 1
    assert (await store.dequeue_rollout(worker_id=Kind.KEY)).attempt.worker_id == Kind.KEY
    assert await store.delete_documents("d", [Kind.KEY]) == 1


async def test_idle_claims_leave_nothing_behind(store):
    for number in range(20):
        await store.dequeue_many_rollouts(worker_id=f"w{number % 2}", key=f"key {number}")
        await store.dequeue_many_rollouts(key=f"key {number}")
    assert len(store._told_nothing) == 3
    changes = store._database.tables.num_changes
    await store.dequeue_many_rollouts(worker_id="w1", key="key 19")
    assert store._database.tables.num_changes == changes


async def test_attempts_that_may_not_end_yet_hide_none_behind_them(url, server, monkeypatch, store):
    monkeypatch.setattr(tables, "MOST_OVERDUE", 2)
    patient = RolloutConfig(unresponsive_seconds=3600)
    for number in range(5):
        await store.start_rollout(number, config=patient)
    # As if they had been silent for an hour before this server began to listen.
    server.psql("\\c agl\nUPDATE attempt SET deadline = 1")
    hasty = RolloutConfig(timeout_seconds=0.1)
    rollout = await store.start_rollout(6, config=hasty)
    ids = [rollout.rollout_id]
    (ended,) = await store.wait_for_rollouts(rollout_ids=ids, timeout=10)
    assert ended.attempt.status == "timeout"
