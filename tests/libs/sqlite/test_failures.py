"""One bad operation harms no other; a full disk is waited for; a writer that fails says so."""

import asyncio
from types import SimpleNamespace

import pytest
from tests.waiting import until

from agl.errors import StoreDiskError, StoreError, UnknownRecordError
from agl.store.answers import RETRY_SECONDS
from agl.store.base import AttemptEnd
from agl.store.engine import operations as ops
from agl.types import EnqueueRolloutRequest
from agl_sqlite import SqliteLightningStore, writer
from agl_sqlite.tables import SqliteTables
from agl_testing.store_steps import span_of


async def test_failing_operation_fails_alone(store):
    started = await store.start_rollout("task")
    results = await asyncio.gather(
        store.enqueue_rollout("one"),
        store.start_attempt("ro-none"),
        store.add_span(span_of(started)),
        store.enqueue_rollout({"not json": object()}),
        store.enqueue_rollout("two"),
        return_exceptions=True,
    )
    assert isinstance(results[1], UnknownRecordError)
    assert isinstance(results[3], StoreError)
    assert "input['not json'] cannot be stored" in str(results[3])
    claimed = await store.dequeue_many_rollouts(limit=9)
    assert [one.input for one in claimed] == ["one", "two"]
    assert (await store.statistics())["total_rollouts"] == 3
    assert (await store.query_rollouts()).total == 3
    assert (await store.query_spans(started.rollout_id)).total == 1


@pytest.mark.parametrize(
    "refusal", ["late report", "late turn", "unknown ids", "unknown resources"]
)
async def test_refusal_costs_the_store_nothing_that_it_knows(store, monkeypatch, refusal):
    ended, goes_on = await store.start_rollout(1), await store.start_rollout(2)
    ids = (ended.rollout_id, ended.attempt.attempt_id)
    await store.update_attempt(*ids, status="succeeded")
    late = AttemptEnd(rollout_id=ids[0], attempt_id=ids[1], status="failed")
    unknown, reloads = span_of(ended).model_copy(update={"attempt_id": "at"}), []
    monkeypatch.setattr(SqliteTables, "reload", lambda self: reloads.append(refusal))
    call = {
        "late report": lambda: store.update_attempt(*ids, status="failed"),
        "late turn": lambda: store.turn([span_of(ended)], finish=late),
        "unknown ids": lambda: store.add_span(unknown),
        "unknown resources": lambda: store.enqueue_rollout(3, resources_id="rs-none"),
    }[refusal]
    calls = store.add_span(span_of(goes_on)), call(), store.enqueue_rollout("after")
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(one, StoreError) for one in results] == [False, True, False]
    assert reloads == []
    assert (await store.query_spans(goes_on.rollout_id)).total == 1


async def test_operation_that_is_refused_after_a_change_is_undone_alone(store):
    started = await store.start_rollout("task")
    ids = (started.rollout_id, started.attempt.attempt_id)

    def refused(tables, now):
        ops.update_attempt(tables, now, *ids, metadata={"by": "refused"})
        raise UnknownRecordError("too late")

    results = await asyncio.gather(
        store.update_attempt(*ids, metadata={"by": "first"}),
        store._write(refused),
        store.enqueue_rollout("neighbour"),
        return_exceptions=True,
    )
    assert isinstance(results[1], UnknownRecordError)
    assert (await store.get_latest_attempt(started.rollout_id)).metadata == {"by": "first"}
    assert (await store.update_attempt(*ids, status="running")).metadata == {"by": "first"}
    assert [one.input for one in await store.query_rollouts()] == ["task", "neighbour"]


def fill(store):
    """Let the file grow no further; returns what makes space again."""
    connection = store._database.connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count={pages}")
    return lambda: connection.execute("PRAGMA max_page_count=1000000")


async def test_full_disk_is_reported_and_the_store_goes_on(store, path):
    RETRY_SECONDS.set(0.2)
    await store.enqueue_rollout("before")
    make_space = fill(store)
    with pytest.raises(StoreDiskError, match="full; nothing of this call was stored") as caught:
        await store.enqueue_rollout("x" * 1_000_000)
    assert str(path) in str(caught.value)
    assert (await store.query_rollouts()).total == 1
    make_space()
    await store.enqueue_rollout("after")
    assert [one.input for one in await store.query_rollouts()] == ["before", "after"]


async def test_full_disk_for_one_call_leaves_its_neighbours_alone(store):
    RETRY_SECONDS.set(0.0)
    await store.enqueue_rollout("before")
    fill(store)
    results = await asyncio.gather(
        store.enqueue_rollout("one"),
        store.enqueue_rollout("x" * 1_000_000),
        store.start_attempt("ro-none"),
        store.enqueue_rollout("two"),
        return_exceptions=True,
    )
    assert isinstance(results[1], StoreDiskError)
    assert isinstance(results[2], UnknownRecordError)
    assert [one.input for one in await store.query_rollouts()] == ["before", "one", "two"]
    claimed = await store.dequeue_many_rollouts(limit=9)
    assert [one.input for one in claimed] == ["before", "one", "two"]


async def test_call_waits_for_space_on_the_disk(store):
    await store.check_health()
    make_space = fill(store)
    big = EnqueueRolloutRequest(input="x" * 1_000_000)
    waiting = asyncio.create_task(store.enqueue_many_rollouts([big]))
    async with asyncio.timeout(20):
        await until(lambda: store._writer.failing_since is not None)
    assert not waiting.done()
    make_space()
    await waiting
    await store.check_health()
    assert (await store.query_rollouts()).total == 1


async def test_calls_after_each_other_have_one_patience_with_a_full_disk(store, monkeypatch):
    RETRY_SECONDS.set(0.2)
    fill(store)
    submit, tries = store._submit_once, []
    monkeypatch.setattr(store, "_submit_once", lambda job: tries.append(job) or submit(job))
    for _ in range(3):
        with pytest.raises(StoreDiskError):
            await store.enqueue_rollout("x" * 1_000_000)
    assert len(tries) > 3
    assert len(set(tries)) == 3
    assert [tries.count(job) for job in dict.fromkeys(tries)][1:] == [1, 1]


async def test_disk_that_fails_again_has_a_patience_of_its_own(path, monkeypatch, caplog):
    RETRY_SECONDS.set(0.0)
    clock = [0.0]
    monkeypatch.setattr(writer, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    store = SqliteLightningStore(path)
    for clock[0] in (0.0, 3600.0):
        began, make_space = clock[0], fill(store)
        for clock[0] in (began, began + 20):
            with pytest.raises(StoreDiskError):
                await store.enqueue_rollout("x" * 1_000_000)
            assert store._writer.failing_since == began
        make_space()
        await store.enqueue_rollout("healed")
    assert caplog.text.count("is tried again for a minute") == 2
    assert caplog.text.count("are stored again") == 2
    await store.close()


async def test_store_is_not_well_until_something_can_be_written_again(store):
    RETRY_SECONDS.set(0.0)
    make_space = fill(store)
    with pytest.raises(StoreDiskError):
        await store.enqueue_rollout("x" * 1_000_000)
    await asyncio.to_thread(store._scan)  # nothing is overdue, and so nothing is written
    with pytest.raises(UnknownRecordError):
        await store.start_attempt("ro-none")
    assert store._writer.failing_since is not None
    connection = store._database.connection
    connection.execute("PRAGMA query_only=ON")  # now not even little can be written
    with pytest.raises(StoreDiskError, match="readonly"):
        await store.check_health()
    connection.execute("PRAGMA query_only=OFF")
    make_space()
    await store.check_health()
    assert store._writer.failing_since is None


async def test_claim_that_a_failing_disk_refused_is_free_for_the_next(store):
    RETRY_SECONDS.set(0.0)
    rollout = await store.enqueue_rollout("task")
    connection = store._database.connection
    connection.execute("PRAGMA query_only=ON")
    with pytest.raises(StoreDiskError):
        await store.dequeue_rollout("w")
    connection.execute("PRAGMA query_only=OFF")
    claimed = await store.dequeue_rollout("w")
    assert claimed.rollout_id == rollout.rollout_id
    assert claimed.attempt.sequence_id == 1


async def test_what_cannot_wake_who_waits_is_in_the_log_and_the_store_goes_on(
    reopen, monkeypatch, caplog
):
    def publish(self, effects):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(SqliteLightningStore, "_publish", publish)
    store = await reopen()
    async with asyncio.timeout(60):
        for number in range(2):
            await store.enqueue_rollout(number)
        await store.check_health()
        assert [one.input for one in await store.dequeue_many_rollouts(limit=9)] == [0, 1]
        await store.close()
    assert "can't start new thread" in caplog.text
