"""``agl store copy``: a whole store from SQLite to PostgreSQL and back, all or nothing."""

import asyncio
import signal
import time

import psycopg
import pytest
from tests.interpreter import AGL, python, started

from agl.errors import ConfigError, InvalidRecordError
from agl.store.base import AttemptEnd
from agl.types import Document, EnqueueRolloutRequest, RolloutConfig
from agl_postgres.store import PostgresLightningStore
from agl_sqlite import SqliteLightningStore
from agl_sqlite.copying import _COLUMNS, copy_store
from agl_testing.store_steps import span_of


async def fill(store):
    """Something of every kind, with a queue whose order is not that of ids."""
    await store.add_resources({})
    await store.add_resources({})
    tasks = [
        EnqueueRolloutRequest(input=f"ü {n}", key=f"key {n}", metadata={"run": "r", "n": n})
        for n in range(6)
    ]
    await store.enqueue_many_rollouts(tasks)
    first, second, third = await store.dequeue_many_rollouts(limit=3, worker_id="w")
    await store.add_many_spans([span_of(first), span_of(first), span_of(second)])
    await store.update_rollout(first.rollout_id, status="requeuing")  # behind all others
    ids = {"rollout_id": second.rollout_id, "attempt_id": second.attempt.attempt_id}
    await store.turn(finish=AttemptEnd(**ids, status="failed"), limit=0)
    await store.update_attempt(*ids.values(), metadata={"a": "\0"})
    await store.put_documents([Document(kind="k", key="1", body=[1], rollout_id=third.rollout_id)])
    await store.put_documents([Document(kind="k", key="2", body=None)])
    config = RolloutConfig(timeout_seconds=1e6)
    await store.start_rollout("late", config=config, worker_id="x")


async def rows_of(store):
    def read(lookups):
        return {
            table: lookups.rows(f"SELECT {', '.join(columns)} FROM {table} ORDER BY 1, 2")
            for table, columns in _COLUMNS.items()
        }

    return await store.look_up(read)


def said(progress):
    return lambda table, count: progress.append((table, count))


@pytest.fixture
async def stores(url, tmp_path):
    stores = {
        "sqlite": SqliteLightningStore(tmp_path / "a.db"),
        "postgres": PostgresLightningStore(url),
        "other": SqliteLightningStore(tmp_path / "b.db"),
    }
    yield stores
    for store in stores.values():
        await store.close()


async def test_there_and_back_each_row_is_as_it_was(stores):
    await fill(stores["sqlite"])
    progress = []
    counts = await copy_store(stores["sqlite"], stores["postgres"], said(progress))
    assert counts == dict(progress)
    assert counts == {
        "rollout": 7, "attempt": 4, "span": 3, "document": 2, "resources": 2, "worker": 2
    }  # fmt: skip
    await copy_store(stores["postgres"], stores["other"], said(progress))
    before = await rows_of(stores["sqlite"])
    assert before == await rows_of(stores["postgres"])
    assert before == await rows_of(stores["other"])


@pytest.mark.parametrize("target", ["postgres", "other"])
async def test_the_copy_goes_on_where_the_store_was(stores, target):
    source, copy = stores["sqlite"], stores[target]
    await fill(source)
    await copy_store(source, copy, said([]))
    for store in (source, copy):
        claimed = await store.dequeue_many_rollouts(limit=9, worker_id="new")
        assert [one.input for one in claimed] == ["ü 3", "ü 4", "ü 5", "ü 0"]
        again = EnqueueRolloutRequest(input=0, key="key 1")
        (kept,) = await store.enqueue_many_rollouts([again])
        assert kept.input == "ü 1"
        new = await store.start_rollout("new")
        added = await store.add_many_spans([span_of(claimed[-1]), span_of(new)])
        assert [one.sequence_id for one in added] == [3, 1]
        await store.add_resources({})
        latest = await store.get_latest_resources()
        assert len(await store.query_resources()) == 3
        assert latest.resources_id not in [
            one[2] for one in (await rows_of(store))["resources"][:2]
        ]


@pytest.mark.parametrize("target", ["postgres", "other"])
async def test_a_store_that_holds_something_is_left_as_it_is(stores, target):
    await fill(stores["sqlite"])
    await stores[target].put_documents([Document(kind="k", key="9", body=1)])
    with pytest.raises(ConfigError, match="there is a document already"):
        await copy_store(stores["sqlite"], stores[target], said([]))
    assert not await stores[target].query_rollouts()


async def test_what_the_target_cannot_hold_is_refused_whole(stores):
    started = await stores["sqlite"].start_rollout(1)
    span = span_of(started).model_copy(update={"name": "a\0b"})
    await stores["sqlite"].add_many_spans([span])
    with pytest.raises(InvalidRecordError, match="NUL"):
        await copy_store(stores["sqlite"], stores["postgres"], said([]))
    assert not await stores["postgres"].query_rollouts()


async def test_after_a_kill_the_target_is_empty_and_the_command_copies_all(url, tmp_path):
    source = SqliteLightningStore(tmp_path / "a.db", durability="process")
    tasks = [EnqueueRolloutRequest(input="x" * 2000) for _ in range(2000)]
    for _ in range(10):
        await source.enqueue_many_rollouts(tasks)
    await source.close()
    words = *AGL, "store", "copy", tmp_path / "a.db", url
    with started(*words) as process, psycopg.connect(url, autocommit=True) as connection:
        end = time.monotonic() + 30
        busy = "SELECT count(*) FROM pg_stat_progress_copy"
        while process.poll() is None and not connection.execute(busy).fetchone()[0]:
            assert time.monotonic() < end
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert connection.execute("SELECT count(*) FROM rollout").fetchone() == (0,)
    done = await asyncio.to_thread(python, *words)
    assert done.returncode == 0, done.stderr
    assert "20000 rollout" in done.stdout
    again = await asyncio.to_thread(python, *words)
    assert again.returncode != 0
    assert "there is a rollout already" in again.stderr
    back = await asyncio.to_thread(python, *AGL, "store", "copy", url, tmp_path / "c.db")
    assert "20000 rollout" in back.stdout, back.stderr
    missing = await asyncio.to_thread(python, *AGL, "store", "copy", tmp_path / "no.db", url)
    assert "there is no store" in missing.stderr
    assert not (tmp_path / "no.db").exists()
