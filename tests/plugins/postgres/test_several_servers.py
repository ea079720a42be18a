"""Several stores before one database: what one of them does, the others know."""

import asyncio
import threading
import time
from contextlib import suppress

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.waiting import until

from agl.errors import ConflictError, StoreUnavailableError
from agl.types import Document, EnqueueRolloutRequest, RolloutConfig
from agl_postgres.doorbell import Doorbell
from agl_postgres.store import PostgresLightningStore
from agl_testing.store_steps import report

END_CONNECTIONS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'agl'"


@pytest.fixture
async def stores(url):
    stores = [PostgresLightningStore(url, scan_interval_seconds=0.05) for _ in range(3)]
    yield stores
    for store in stores:
        await store.close()


async def test_an_end_is_heard_at_another_server(stores):
    rollout = await stores[0].enqueue_rollout({"n": 1})
    wanted = [rollout.rollout_id]
    waiting = asyncio.create_task(stores[1].wait_for_rollouts(rollout_ids=wanted, timeout=20))
    claimed = await stores[2].dequeue_rollout()
    await report(stores[2], claimed, "succeeded")
    (ended,) = await waiting
    assert ended.status == "succeeded"


async def test_a_key_makes_one_rollout_whoever_is_asked(stores):
    tasks = [EnqueueRolloutRequest(input={"n": 1}, key=f"key {n}") for n in range(20)]
    made = await asyncio.gather(*(store.enqueue_many_rollouts(tasks) for store in stores))
    ids = {tuple(one.rollout_id for one in each) for each in made}
    assert len(ids) == 1
    assert len(await stores[0].query_rollouts()) == 20


async def test_deadlines_hold_though_the_server_of_an_attempt_is_gone(stores, url):
    gone = PostgresLightningStore(url)
    config = RolloutConfig(timeout_seconds=0.2)
    rollout = await gone.start_rollout({"n": 1}, config=config)
    await gone.close()
    ended = await stores[0].wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=20)
    assert [one.attempt.status for one in ended] == ["timeout"]


class Cut:
    """A way to the server that is cut as a transaction commits, before it or behind it."""

    def __init__(self, tables, is_kept):
        self.connection, self.is_kept = tables._connection, is_kept

    def __getattr__(self, name):
        return getattr(self.connection, name)

    def execute(self, sql, *values):
        if sql != "COMMIT":
            return self.connection.execute(sql, *values)
        if self.is_kept:
            self.connection.execute(sql)
        return self.connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")


@pytest.mark.parametrize("is_kept", [True, False])
async def test_what_was_committed_is_not_done_again_though_its_answer_is_lost(stores, is_kept):
    tables, said = stores[0]._database.tables, []
    was_kept = tables._was_kept
    tables._was_kept = lambda: said.append(was_kept()) or said[-1]
    tables._connection = Cut(tables, is_kept)
    rollout = await stores[0].enqueue_rollout({"n": 1})
    found = await stores[1].query_rollouts()
    assert [one.rollout_id for one in found] == [rollout.rollout_id]
    assert said == [is_kept]


async def test_who_asks_whether_a_transaction_was_kept_waits_for_its_end(stores, url):
    tables, locked = stores[0]._database.tables, []
    flush = tables.flush

    def look_and_flush():
        with psycopg.connect(url) as other:
            number = "%s # 'agl_version'::regclass::oid::bigint"
            sql = f"SELECT NOT pg_try_advisory_xact_lock({number})"
            locked.extend(other.execute(sql, [tables._lock]).fetchone())
        flush()

    tables.flush = look_and_flush
    await stores[0].enqueue_rollout({"n": 1})
    await stores[0].delete_documents("kind", ["key"])
    assert locked
    assert all(locked)


async def test_a_batch_of_which_nobody_knows_whether_it_was_kept_is_not_written_again(stores):
    store, tables = stores[0], stores[0]._database.tables
    commit = tables.commit

    def commit_and_lose_the_answer():
        is_last_round = not tables.wanted
        commit()
        if is_last_round and tables.num_operations >= 3:
            raise StoreUnavailableError("whether this call was stored is not known")

    began, may_end = threading.Event(), threading.Event()

    def keep_busy(*_):
        began.set()
        may_end.wait(60)

    busy = asyncio.create_task(asyncio.to_thread(store.write, keep_busy))
    await asyncio.to_thread(began.wait, 60)  # so that what follows is one batch
    calls = [asyncio.create_task(store.enqueue_rollout(n)) for n in range(3)]
    await until(lambda: store._writer._jobs.qsize() >= 3)
    tables.commit = commit_and_lose_the_answer
    may_end.set()
    for call in calls:
        with pytest.raises(StoreUnavailableError, match="not known"):
            await call
    del tables.commit
    await busy
    assert [one.input for one in await store.query_rollouts()] == [0, 1, 2]


async def test_a_server_that_may_only_be_read_is_waited_out(stores, url):
    """As one that fails over."""

    def may_write(word):
        with psycopg.connect(url, autocommit=True) as other:
            other.execute(f"ALTER SYSTEM SET default_transaction_read_only = {word}")
            other.execute("SELECT pg_reload_conf()")

    calls = []
    may_write("on")
    try:
        while stores[0]._writer.failing_since is None:  # it hears of it when it likes
            calls.append(asyncio.create_task(stores[0].enqueue_rollout(len(calls))))
            await asyncio.sleep(0.05)
            assert not [one for one in calls if one.done() and one.exception()]
    finally:
        may_write("off")
    assert [(await call).input for call in calls] == list(range(len(calls)))


async def test_all_go_by_the_clock_of_the_database(stores, url, monkeypatch):
    rollout = await stores[0].start_rollout({"n": 1}, config=RolloutConfig(timeout_seconds=600))
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    ahead = PostgresLightningStore(url, scan_interval_seconds=0.05)
    await asyncio.sleep(0.5)
    attempt = await stores[0].get_latest_attempt(rollout.rollout_id)
    await ahead.close()
    assert attempt.status == "preparing"


async def test_a_server_that_connects_again_has_the_time_it_had(stores, server, monkeypatch):
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)  # as NTP sets it
    server.psql(END_CONNECTIONS)
    rollout = await stores[0].enqueue_rollout({"n": 1})
    assert abs(rollout.start_time - real()) < 60


async def test_servers_that_find_the_same_tables_by_other_paths_keep_each_other_out(
    stores, url, bell
):
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA alice")
    other = PostgresLightningStore(make_conninfo(url, options="-csearch_path=alice,public"))

    async def count(store):
        for _ in range(50):
            found = await store.query_documents("count", key_in=["k"])
            so_far = found[0].version if found else 0
            with suppress(ConflictError):
                one = Document(kind="count", key="k", body=0, version=so_far + 1, expect=so_far)
                await store.put_documents([one])
                kept.append(one.version)

    kept = []
    await asyncio.gather(*map(count, [stores[0], other] * 2))
    assert sorted(kept) == [*range(1, len(kept) + 1)]
    host = bell(other.path)
    assert await host.hears()
    await stores[0].enqueue_rollout({"n": 1})
    assert not await host.hears()
    await other.close()


async def test_resources_that_are_queued_with_are_not_deleted_with_others(stores, monkeypatch):
    here, there = stores[:2]
    for name in ("old", "new"):
        await here.update_resources(name, {})
    first = await here.enqueue_rollout(1, resources_id="old")
    await here.update_rollout(first.rollout_id, status="cancelled")
    tables, written, goes_on = here._database.tables, threading.Event(), threading.Event()
    flush = tables.flush

    def flush_and_wait():
        flush()
        written.set()
        goes_on.wait(60)

    monkeypatch.setattr(tables, "flush", flush_and_wait)
    queued = asyncio.create_task(here.enqueue_rollout(2, resources_id="old"))
    await asyncio.to_thread(written.wait)
    deleted = asyncio.create_task(there.delete_rollouts([first.rollout_id]))
    await asyncio.wait([deleted], timeout=0.5)
    goes_on.set()
    assert ((await queued).resources_id, (await deleted)["resources"]) == ("old", 0)
    assert await there.get_resources_by_id("old") is not None


@pytest.fixture
async def bell(monkeypatch):
    """Makes what hears the rings at an address, and looks only once without one."""
    monkeypatch.setattr("agl_postgres.doorbell.LOOK_SECONDS", 600)
    loop, made = asyncio.get_running_loop(), []

    class Host:
        def __init__(self, url):
            self.answering, self.heard = threading.Event(), asyncio.Queue()
            made.append(Doorbell(lambda: psycopg.connect(url, autocommit=True), self.answer))

        def answer(self, connection, is_look):
            self.answering.set()
            connection.execute("SELECT pg_sleep(0.5)")
            loop.call_soon_threadsafe(self.heard.put_nowait, is_look)

        async def hears(self):
            async with asyncio.timeout(60):
                return await self.heard.get()

    yield Host
    for one in made:
        one.stop()


async def test_ring_that_comes_while_one_is_answered_is_heard(stores, url, bell):
    host = bell(url)
    assert await host.hears()  # the first look
    for _ in range(2):
        host.answering.clear()
        await stores[0].enqueue_rollout({"n": 1})
        await asyncio.to_thread(host.answering.wait)
    assert [await host.hears(), await host.hears()] == [False, False]


async def test_store_of_another_schema_is_not_rung_for(stores, url, bell):
    apart = PostgresLightningStore(make_conninfo(url, options="-csearch_path=apart"))
    here, there = bell(url), bell(apart.path)
    assert (await here.hears(), await there.hears()) == (True, True)
    for _ in range(2):
        await stores[0].enqueue_rollout({"n": 1})
        assert not await here.hears()
    await apart.close()
    assert there.heard.empty()
