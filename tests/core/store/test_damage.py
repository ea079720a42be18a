"""Bytes of a file that a disk has changed are noticed, and cost no other record."""

import asyncio
import contextlib
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from agl.emitter import find_final_reward
from agl.errors import DamagedRecordError, StoreError, StoreUnavailableError
from agl.http.client import LightningStoreClient
from agl.http.server import LightningStoreServer
from agl.store.base import LightningStore
from agl.store.sqlite import SqliteLightningStore
from agl.types import LedgerItem, LedgerPart, PromptTemplate, Rollout, RolloutConfig, Span

LETTER, NO_UTF_8 = b"X", b"\xff"
CHANGES = pytest.mark.parametrize("change", [LETTER, NO_UTF_8], ids=["letter", "no-utf-8"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agl.db"


def overwrite(path: Path, text: str, change: bytes) -> None:
    """Change one byte in the middle of every place in the file that holds the text."""
    data = path.read_bytes()
    found = text.encode()
    assert found in data
    half = len(found) // 2
    path.write_bytes(data.replace(found, found[:half] + change + found[half + 1 :]))


def forget_checksums(path: Path) -> None:
    """Make the file one of an older version."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for table in ("rollout", "span", "ledger_part", "resources"):
            connection.execute(f"UPDATE {table} SET crc = NULL")
        connection.commit()


def span(rollout: Rollout, attempt_id: str, name: str, **attributes: Any) -> Span:
    return Span.from_attributes(
        attributes=attributes, rollout_id=rollout.rollout_id, attempt_id=attempt_id, name=name
    )


async def rewarded(store: LightningStore, why: str = "the answer is wrong") -> Rollout:
    """A rollout with two rewards, of which the second counts."""
    started = await store.start_rollout("a task")
    spans = [
        span(started, started.attempt.attempt_id, "first", **{"agentlightning.reward.0.value": 1}),
        span(
            started,
            started.attempt.attempt_id,
            "second",
            **{"agentlightning.reward.0.value": 0, "why": why},
        ),
    ]
    await store.add_many_spans(spans)
    await store.update_attempt(started.rollout_id, "latest", status="succeeded")
    return started


@CHANGES
async def test_a_damaged_span_is_an_error_and_no_reward_is_made_of_the_others(
    path: Path, change: bytes
) -> None:
    store = SqliteLightningStore(path)
    damaged, other = await rewarded(store), await rewarded(store, "the reply is wrong")
    (_, last) = await store.query_spans(damaged.rollout_id)
    await store.close()
    overwrite(path, "the answer is wrong", change)
    store = SqliteLightningStore(path)
    what = f"span 'second' \\('{last.span_id}'\\) of rollout '{damaged.rollout_id}'.*restore a copy"
    for call in (store.query_spans, store.query_spans_json):
        with pytest.raises(DamagedRecordError, match=what):
            await call(rollout_id=damaged.rollout_id)
    assert [one.name for one in await store.query_spans(damaged.rollout_id, name="first")]
    assert find_final_reward(list(await store.query_spans(other.rollout_id))) == 0
    await store.close()


async def test_what_has_no_checksum_is_read_as_it_stands(path: Path) -> None:
    """So it was before there were checksums, and is for rows of that time."""
    store = SqliteLightningStore(path)
    rollout = await rewarded(store)
    queued = await store.enqueue_rollout("a task of words")
    await store.close()
    forget_checksums(path)
    overwrite(path, "the answer is wrong", LETTER)
    overwrite(path, "a task of words", LETTER)
    store = SqliteLightningStore(path)
    (_, last) = await store.query_spans(rollout.rollout_id)
    assert last.attributes["why"] == "the answeX is wrong"
    (claimed,) = await store.dequeue_many_rollouts()
    assert (claimed.rollout_id, claimed.input) == (queued.rollout_id, "a task Xf words")
    await store.close()


@CHANGES
async def test_a_damaged_task_is_not_run_and_holds_up_nobody(path: Path, change: bytes) -> None:
    store = SqliteLightningStore(path)
    config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    damaged = await store.enqueue_rollout("a task of words", config=config)
    other = await store.enqueue_rollout("another one")
    await store.close()
    overwrite(path, "a task of words", change)
    store = SqliteLightningStore(path)
    shown, whole = await store.query_rollouts()
    assert "its input, config or metadata is not what was stored" in shown.input
    assert (shown.rollout_id, whole) == (damaged.rollout_id, other)
    for call in (store.get_rollout_by_id, store.get_rollout_by_id_json, store.start_attempt):
        with pytest.raises(DamagedRecordError, match=f"rollout '{damaged.rollout_id}'"):
            await call(damaged.rollout_id)
    with pytest.raises(DamagedRecordError):  # or its message would be the task from now on
        await store.update_rollout(damaged.rollout_id, metadata={"group": 1})
    claimed = await store.dequeue_many_rollouts(limit=9)
    assert [one.rollout_id for one in claimed] == [other.rollout_id]
    (ended,) = await store.wait_for_rollouts(rollout_ids=[damaged.rollout_id], timeout=0)
    attempts = await store.query_attempts(damaged.rollout_id)
    assert (ended.status, len(attempts)) == ("failed", 2)
    assert {(one.error.boundary, one.error.type) for one in attempts if one.error} == {
        ("store", "DamagedRecordError")
    }
    await store.close()


async def test_a_damaged_task_can_be_replaced(path: Path) -> None:
    store = SqliteLightningStore(path)
    rollout = await store.enqueue_rollout("a task of words")
    await store.close()
    overwrite(path, "a task of words", LETTER)
    store = SqliteLightningStore(path)
    await store.update_rollout(rollout.rollout_id, input="a task of words")
    (claimed,) = await store.dequeue_many_rollouts()
    assert claimed.input == "a task of words"
    await store.close()


async def test_a_claim_that_is_asked_for_again_gets_no_damaged_task(path: Path) -> None:
    store = SqliteLightningStore(path)
    await store.enqueue_rollout("a task of words", key="its key")
    await store.dequeue_many_rollouts(worker_id="w", key="lost")
    await store.close()
    overwrite(path, "a task of words", LETTER)
    store = SqliteLightningStore(path)
    with pytest.raises(DamagedRecordError):
        await store.dequeue_many_rollouts(worker_id="w", key="lost")
    with pytest.raises(DamagedRecordError):
        await store.start_rollout("a task of words", key="its key")
    await store.close()


@CHANGES
async def test_a_damaged_account_says_so_and_spares_the_others(path: Path, change: bytes) -> None:
    store = SqliteLightningStore(path)
    parts: list[LedgerPart] = []
    for number in range(2):
        rollout = await rewarded(store)
        part = LedgerPart.model_validate(
            {
                "rollout_id": rollout.rollout_id,
                "step": number,
                "items": [{"kind": "rollout", "rollout_id": rollout.rollout_id}],
                "excluded": [
                    {
                        "kind": "rollout",
                        "rollout_id": rollout.rollout_id,
                        "reason": "no_reward",
                        "detail": f"for the reason of {number}",
                    }
                ],
            }
        )
        parts.append(part)
    await store.add_ledger_parts(parts)
    await store.close()
    overwrite(path, "for the reason of 0", change)
    store = SqliteLightningStore(path)
    damaged, whole = await store.query_ledger_parts()
    assert "is not what was stored" in damaged.problem
    assert (damaged.items, whole) == ([], parts[1])
    await store.close()


@CHANGES
async def test_damaged_resources_are_an_error_and_not_a_prompt(path: Path, change: bytes) -> None:
    store = SqliteLightningStore(path)
    snapshots = [
        await store.add_resources({"prompt": PromptTemplate(template=f"Be kind, version {n}")})
        for n in range(2)
    ]
    await store.close()
    overwrite(path, "Be kind, version 1", change)
    store = SqliteLightningStore(path)
    for call in (store.get_latest_resources(), store.query_resources()):
        with pytest.raises(DamagedRecordError, match=f"'{snapshots[1].resources_id}'"):
            await call
    assert await store.get_resources_by_id(snapshots[0].resources_id) == snapshots[0]
    await store.close()


@CHANGES
async def test_what_is_damaged_beside_the_bodies_is_an_error_of_the_store(
    path: Path, change: bytes
) -> None:
    store = SqliteLightningStore(path)
    await rewarded(store)
    await store.close()
    overwrite(path, "succeeded", change)
    store = SqliteLightningStore(path)
    with pytest.raises(StoreError, match="read"):
        await store.query_rollouts()
    await store.close()


def test_a_damaged_description_of_the_tables_is_refused_at_the_opening(path: Path) -> None:
    asyncio.run(SqliteLightningStore(path).close())
    overwrite(path, "config       TEXT NOT NULL", NO_UTF_8)
    with pytest.raises(StoreUnavailableError, match="damaged and was left as it is"):
        SqliteLightningStore(path)


def contents(path: Path) -> bytes:
    return path.read_bytes()


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


async def bodies(path: Path, rollout_ids: list[str]) -> list[Any]:
    """Inputs, spans and accounts as they are read, or the error in their place."""
    store, found = SqliteLightningStore(path), list[Any]()
    for rollout_id in rollout_ids:
        try:
            rollout = await store.get_rollout_by_id(rollout_id)
            found.append(rollout and (rollout.input, rollout.metadata))
        except StoreError as error:
            found.append(error)
        try:
            found.append([one.model_dump() for one in await store.query_spans(rollout_id)])
        except StoreError as error:
            found.append(error)
    try:
        parts = await store.query_ledger_parts()
        found += [error_of(part) or part.items for part in parts]
    except StoreError as error:
        found.append(error)
    await store.close()
    return found


def error_of(part: LedgerPart) -> DamagedRecordError | None:
    return DamagedRecordError(part.problem) if part.problem else None


@pytest.mark.parametrize("column", ["a", "sequence_id"])
async def test_a_span_that_has_moved_is_damaged(path: Path, column: str) -> None:
    store = SqliteLightningStore(path)
    first, second = await rewarded(store), await rewarded(store)
    await store.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE span SET {column} = {column} + 1 WHERE k = 1")
        connection.commit()
    store = SqliteLightningStore(path)
    with pytest.raises(DamagedRecordError):
        await store.query_spans((first if column == "sequence_id" else second).rollout_id)
    await store.close()


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_byte_is_changed_no_body_is_read_that_was_not_stored(
    path: Path, seed: int
) -> None:
    store = SqliteLightningStore(path)
    rollout_ids: list[str] = []
    for number in range(20):
        rollout = await rewarded(store, f"the answer to question {number} is wrong " * 20)
        rollout_ids.append(rollout.rollout_id)
        item = LedgerItem(kind="rollout", rollout_id=rollout.rollout_id)
        await store.add_ledger_parts([LedgerPart(rollout_id=rollout.rollout_id, items=[item])])
    await store.close()
    whole, stored = contents(path), await bodies(path, rollout_ids)
    used = [place for place, byte in enumerate(whole) if byte and place > 100]
    chance, noticed = random.Random(seed), 0
    for _ in range(12):
        data, place = bytearray(whole), chance.choice(used)
        data[place] ^= 1 << chance.randrange(8)
        write(path, data)
        try:
            found = await bodies(path, rollout_ids)
        except StoreUnavailableError:
            noticed += 1
            continue
        noticed += any(isinstance(one, StoreError) for one in found)
        for now, before in zip(found, stored, strict=False):
            assert now == before or isinstance(now, StoreError) or not now, place
    assert noticed > 3


async def test_damage_is_told_over_http(path: Path) -> None:
    store = SqliteLightningStore(path)
    rollout = await rewarded(store)
    queued = await store.enqueue_rollout("a task of words")
    await store.close()
    overwrite(path, "the answer is wrong", LETTER)
    overwrite(path, "a task of words", LETTER)
    server = LightningStoreServer(SqliteLightningStore(path), port=0)
    await server.start()
    client = LightningStoreClient(server.endpoint)
    with pytest.raises(DamagedRecordError, match="span 'second'"):
        await client.query_spans(rollout.rollout_id)
    with pytest.raises(DamagedRecordError, match=f"rollout '{queued.rollout_id}'"):
        await client.get_rollout_by_id(queued.rollout_id)
    assert "is not what was stored" in (await client.query_rollouts())[1].input
    await client.close()
    await server.close()
