"""A file that SQLite or JSON cannot read is a plain error, which names the file."""

import asyncio
import random
from pathlib import Path

import pytest
from tests.stores import opened, served

from agl.errors import DamagedRecordError, StoreError, StoreUnavailableError
from agl.types import Document, Failure, RolloutConfig
from agl_sqlite import SqliteLightningStore
from agl_testing.store_steps import span_of


def overwrite(path: Path, text: str, change: bytes) -> None:
    """Change one byte in the middle of every place in the file that holds the text."""
    data, found = path.read_bytes(), text.encode()
    assert found in data
    half = len(found) // 2
    path.write_bytes(data.replace(found, found[:half] + change + found[half + 1 :]))


async def fill(path: Path, count: int = 2) -> list[str]:
    """Rollouts that have ended, each with a span; and one in the queue."""
    store, ids = SqliteLightningStore(path), list[str]()
    for number in range(count):
        started = await store.start_rollout("a task")
        text = {"why": f"the answer to {number} is wrong " * 20}
        await store.add_many_spans([span_of(started, attributes=text)])
        await store.update_attempt(started.rollout_id, "latest", status="succeeded")
        ids.append(started.rollout_id)
    await store.enqueue_rollout({"words": "of a task"})
    await store.close()
    return ids


@pytest.mark.parametrize(
    ("text", "change"), [("succeeded", b"X"), ("succeeded", b"\xff"), ('"words"', b'"')]
)
async def test_what_cannot_be_read_is_an_error_of_the_store(reopen, path, text, change):
    await fill(path)
    overwrite(path, text, change)
    store = await reopen()
    with pytest.raises(StoreError, match=f"{path.name}.*read"):
        await store.query_rollouts()


async def test_one_that_cannot_be_read_hides_no_other_and_is_told_over_http(path):
    damaged, whole = await fill(path)
    overwrite(path, 'why":"the answer to 0 is', b'"')
    async with served(SqliteLightningStore(path)) as (_, client):
        with pytest.raises(DamagedRecordError, match=path.name):
            await client.query_spans(damaged)
        assert len(await client.query_spans(whole)) == 1


def test_a_damaged_description_of_the_tables_is_refused_at_the_opening(path):
    asyncio.run(SqliteLightningStore(path).close())
    overwrite(path, "config       TEXT NOT NULL", b"\xff")
    with pytest.raises(StoreUnavailableError, match="damaged; it was left as it is"):
        SqliteLightningStore(path)


async def read(path: Path, rollout_ids: list[str]) -> None:
    async with opened(path) as store:
        for rollout_id in rollout_ids:
            await store.get_rollout_by_id(rollout_id)
            await store.query_spans(rollout_id)
        await store.dequeue_many_rollouts()


@pytest.mark.parametrize("seed", range(3))
def test_whatever_byte_is_changed_nothing_else_than_an_error_of_the_store_is_raised(path, seed):
    ids, noticed = asyncio.run(fill(path, 20)), 0
    whole, chance = path.read_bytes(), random.Random(seed)
    used = [place for place, byte in enumerate(whole) if byte and place > 100]
    for _ in range(20):
        data, place = bytearray(whole), chance.choice(used)
        data[place] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        try:
            asyncio.run(read(path, ids))
        except StoreError:
            noticed += 1
    assert noticed > 0


async def test_what_cannot_be_read_is_named_and_can_be_deleted(store, reopen):
    ids = [(await store.start_rollout({"words": n}, worker_id="w")).rollout_id for n in range(3)]
    for rollout_id in ids[:2]:
        await store.update_attempt(rollout_id, "latest", metadata={"by": rollout_id})
    await store.put_documents([Document(kind="note", key=key, body=1) for key in "ab"])
    store = await reopen(
        "UPDATE rollout SET metadata = '[' WHERE n = 1",
        "UPDATE attempt SET metadata = '[' WHERE n = 2",
        "UPDATE document SET body = '{' WHERE key = 'b'",
    )
    for rollout_id in ids[:2]:
        with pytest.raises(DamagedRecordError, match=f"'{rollout_id}'.*delete_rollouts"):
            await store.query_rollouts()
        assert (await store.delete_rollouts([rollout_id]))["rollouts"] == 1
    assert [one.rollout_id for one in await store.query_rollouts()] == ids[2:]
    with pytest.raises(DamagedRecordError, match=r"document 'b' of kind 'note'.*delete_documents"):
        await store.query_documents("note")
    assert await store.delete_documents("note", ["b"]) == 1
    assert [one.key for one in await store.query_documents("note")] == ["a"]


async def test_a_damaged_attempt_or_worker_holds_up_no_other(store, reopen):
    retry = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    bad = await store.start_rollout("its attempt is damaged", config=retry)
    failure = Failure(boundary="agent", type="ValueError", message="no")
    await store.update_attempt(bad.rollout_id, "latest", status="failed", error=failure)
    config = RolloutConfig(timeout_seconds=0.1)
    late = await store.start_rollout("its worker is damaged", config=config, worker_id="w")
    await store.start_rollout("so is a newer attempt of that one", worker_id="w")
    good = await store.enqueue_rollout("good")
    await store.update_worker("w", heartbeat_stats={"a": 1})
    changes = (
        "UPDATE attempt SET error = CAST(x'FF' AS TEXT) WHERE a = 1",
        "UPDATE attempt SET metadata = '[' WHERE a = 3",
        "UPDATE worker SET heartbeat_stats = '['",
    )
    store = await reopen(*changes, scan_interval_seconds=0.05)
    claimed = await store.dequeue_many_rollouts(limit=2)
    assert [one.rollout_id for one in claimed] == [good.rollout_id]
    wanted = [bad.rollout_id, late.rollout_id]
    ended = await store.wait_for_rollouts(rollout_ids=wanted, timeout=5.0)
    assert [one.status for one in ended] == ["failed", "failed"]
    assert [one.worker_id for one in await store.query_workers()] == ["w"]
    assert (await store.delete_rollouts(wanted))["rollouts"] == 2
