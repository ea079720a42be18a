"""What a store acknowledged is there again when its file is opened again."""

import asyncio
import os
import subprocess
import threading
import time

import pytest
from tests.interpreter import started

from agl.errors import DamagedRecordError, UnknownRecordError
from agl.store.engine import operations as ops
from agl.types import EnqueueRolloutRequest, PromptTemplate, RolloutConfig
from agl_sqlite import database, writer
from agl_sqlite.tables import SqliteTables
from agl_testing.store_steps import span_of


async def test_everything_is_there_after_reopening(store, reopen):
    resources = await store.add_resources({"p": PromptTemplate(template="x")})
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(3)])
    claimed = await store.dequeue_rollout("w1")
    spans = await store.add_many_spans([span_of(claimed), span_of(claimed)])
    worker = await store.get_worker_by_id("w1")
    await store.dequeue_many_rollouts(limit=5)
    await store.dequeue_rollout("w2")
    store = await reopen()
    assert await store.get_latest_resources() == resources
    rollout = await store.get_rollout_by_id(claimed.rollout_id)
    assert (rollout.status, rollout.attempt.status) == ("running", "running")
    assert list(await store.query_spans(claimed.rollout_id)) == list(spans)
    assert await store.get_worker_by_id("w1") == worker
    assert (await store.get_worker_by_id("w2")).status == "idle"
    assert (await store.add_span(span_of(claimed))).sequence_id == 3
    new = await store.enqueue_rollout("after")
    assert (await store.dequeue_rollout()).rollout_id == new.rollout_id


async def test_keys_are_known_after_reopening(store, reopen):
    tasks = [EnqueueRolloutRequest(input=1, key="a"), EnqueueRolloutRequest(input=2, key="b")]
    queued = await store.enqueue_many_rollouts(tasks[:1])
    store = await reopen()
    again = await store.enqueue_many_rollouts(tasks)
    assert again[0] == queued[0]
    assert (await store.statistics())["total_rollouts"] == 2
    assert [r.input for r in await store.dequeue_many_rollouts(limit=5)] == [1, 2]


async def test_queue_keeps_its_order_over_a_restart(store, reopen):
    config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    await store.enqueue_many_rollouts(
        [EnqueueRolloutRequest(input=i, config=config) for i in range(3)]
    )
    first = await store.dequeue_rollout()
    await store.update_attempt(first.rollout_id, "latest", status="failed")
    store = await reopen()
    assert [one.input for one in await store.dequeue_many_rollouts(limit=9)] == [1, 2, 0]


async def test_watchdog_goes_on_after_a_restart(store, reopen):
    started = await store.start_rollout("task", config=RolloutConfig(timeout_seconds=0.05))
    store = await reopen(scan_interval_seconds=0.02)
    ended = await store.wait_for_rollouts(rollout_ids=[started.rollout_id], timeout=4)
    assert [one.status for one in ended] == ["failed"]


async def test_attempts_are_not_held_silent_for_the_time_that_the_store_was_away(store, reopen):
    config = RolloutConfig(unresponsive_seconds=2.0)
    alive = await store.start_rollout(1, config=config)
    dead = await store.start_rollout(2, config=config)
    late = await store.start_rollout(3, config=RolloutConfig(timeout_seconds=0.5))
    await store.close()
    await asyncio.sleep(2.1)  # the outage

    store = await reopen(scan_interval_seconds=0.05)
    # Two scans are over, and a runner that is alive finds the way back.
    await store.wait_for_rollouts(rollout_ids=[late.rollout_id], timeout=0.3)
    await store.update_attempt(alive.rollout_id, alive.attempt.attempt_id, status="succeeded")
    assert (await store.get_rollout_by_id(alive.rollout_id)).status == "succeeded"
    await store.wait_for_rollouts(rollout_ids=[dead.rollout_id], timeout=20)
    assert (await store.get_latest_attempt(dead.rollout_id)).status == "unresponsive"
    # A deadline that was given holds, away or not.
    assert (await store.get_latest_attempt(late.rollout_id)).status == "timeout"


async def test_closing_leaves_one_file(store, path):
    await store.enqueue_rollout("task")
    await store.close()
    assert [one.name for one in path.parent.iterdir()] == [path.name]


CRASHING = """
import asyncio, sys
from agl_sqlite import SqliteLightningStore
from agl.types import Span

def out(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()

async def runner(store, name):
    while True:
        rollout = await store.enqueue_rollout({"name": name})
        out("enqueued", rollout.rollout_id)
        claimed = await store.dequeue_rollout(name)
        out("claimed", claimed.rollout_id, claimed.attempt.attempt_id)
        spans = [
            Span.from_attributes(attributes={"text": "x" * 200}, rollout_id=claimed.rollout_id,
                                 attempt_id=claimed.attempt.attempt_id, name="s")
            for _ in range(4)
        ]
        await store.add_many_spans(spans)
        out("spans", claimed.rollout_id)
        await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
        out("succeeded", claimed.rollout_id)

async def main():
    store = SqliteLightningStore(sys.argv[1], durability=sys.argv[2])
    await asyncio.gather(*(runner(store, f"w{i}") for i in range(8)))

asyncio.run(main())
"""


def killed_after_a_while(path, durability, log):
    """Run the program above, kill -9 it in the middle, and return what it said."""
    with log.open("wb") as stream:
        command = ["-c", CRASHING, path, durability]
        process = started(*command, stdout=stream, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while log.stat().st_size < 20_000 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
        process.wait()
    lines = log.read_text().split("\n")[:-1]
    assert len(lines) > 200
    return [line.split() for line in lines]


@pytest.mark.parametrize("durability", ["power", "process"])
async def test_what_was_acknowledged_survives_kill_9(reopen, sql, path, tmp_path, durability):
    said: dict[str, list[list[str]]] = {}
    for _ in range(2):
        for word, *rest in killed_after_a_while(path, durability, tmp_path / "said"):
            said.setdefault(word, []).append(rest)

    store = await reopen()
    rollouts = {one.rollout_id: one for one in await store.query_rollouts()}
    assert {one for (one,) in said["enqueued"]} <= set(rollouts)
    claimed = [one for one, _ in said["claimed"]]
    assert len(claimed) == len(set(claimed))
    for rollout_id, attempt_id in said["claimed"]:
        assert rollouts[rollout_id].attempt.attempt_id == attempt_id
    for (rollout_id,) in said["spans"]:
        spans = await store.query_spans(rollout_id)
        assert [span.sequence_id for span in spans] == [1, 2, 3, 4]
    assert all(rollouts[one].status == "succeeded" for (one,) in said["succeeded"])
    await store.close()
    assert sql("PRAGMA integrity_check") == [("ok",)]


async def test_claim_is_answered_again_after_the_store_was_opened_anew(store, reopen):
    await store.enqueue_rollout(1)
    await store.enqueue_rollout(2)
    (first,) = await store.dequeue_many_rollouts(worker_id="w", key="first")
    (second,) = await store.dequeue_many_rollouts(worker_id="w", key="second")
    await store.update_attempt(second.rollout_id, "latest", status="running")
    store = await reopen()
    assert await store.dequeue_many_rollouts(worker_id="w", key="first") == [first]
    assert await store.dequeue_many_rollouts(worker_id="w", key="second") == []


async def test_claim_that_is_repeated_while_the_store_reads_its_file_anew_is_answered_again(
    store, monkeypatch
):
    await store.enqueue_rollout(1)
    claimed = await store.dequeue_many_rollouts(worker_id="w", key="key")
    reading, go_on = threading.Event(), threading.Event()

    def one(self, name, *parameters):
        if name == "counters":
            reading.set()
            assert go_on.wait(60)
        return ask(self, name, *parameters)

    ask = SqliteTables.one
    monkeypatch.setattr(SqliteTables, "one", one)

    def refused_late(tables, now):
        ops.enqueue_many_rollouts(tables, now, [EnqueueRolloutRequest(input=2)])
        raise UnknownRecordError("too late")

    refused = asyncio.create_task(store._write(refused_late))
    await asyncio.to_thread(reading.wait, 60)
    again = asyncio.create_task(store.dequeue_many_rollouts(worker_id="w", key="key"))
    await asyncio.sleep(0)  # it has asked
    go_on.set()
    assert await again == claimed
    with pytest.raises(UnknownRecordError):
        await refused


async def test_claim_that_is_repeated_while_the_first_is_stored_is_answered_again(store):
    await store.enqueue_rollout(1)
    claims = []

    def the_first_takes_the_last():
        del store._has_queued
        job = writer.Job(lambda tables, now: ops.claim(tables, now, 1, "w", "key"))
        claimed = job.bind_to_thread()
        store._writer.submit(job)
        claims.extend(claimed.result(60))
        return store._has_queued()

    store._has_queued = the_first_takes_the_last
    assert await store.dequeue_many_rollouts(worker_id="w", key="key") == claims != []


async def test_log_stays_short(reopen, path, monkeypatch):
    monkeypatch.setattr(database, "_CHECKPOINT_PAGES", 50)
    store = await reopen(durability="process")
    for _ in range(300):
        await store.enqueue_rollout("x" * 20_000)
    assert path.stat().st_size > 3_000_000
    # The file never shrinks: this is the longest that the log was. Without checkpoints: 20 MB.
    assert os.stat(f"{path}-wal").st_size < 2_500_000


async def test_queued_rollout_that_cannot_be_read_fails_and_the_next_are_claimed(
    store, reopen, sql, caplog
):
    tasks = [EnqueueRolloutRequest(input={"n": n}) for n in range(100)]
    ids = [one.rollout_id for one in await store.enqueue_many_rollouts(tasks)]
    store = await reopen(
        "UPDATE rollout SET input = '{' WHERE n <= 70",
        'UPDATE rollout SET config = \'{"max_attempts": "x"}\' WHERE n = 80',
    )
    claimed = await store.dequeue_many_rollouts(limit=100, worker_id="w")
    assert [one.rollout_id for one in claimed] == [*ids[70:79], *ids[80:]]
    assert await store.dequeue_rollout("w") is None
    for rollout_id in (ids[0], ids[69], ids[79]):
        (attempt,) = await store.query_attempts(rollout_id)
        assert (attempt.status, attempt.error.boundary) == ("failed", "store")
        assert rollout_id in attempt.error.message
        assert f"rollout {rollout_id!r}" in caplog.text
        with pytest.raises(DamagedRecordError, match=rollout_id):
            await store.get_rollout_by_id(rollout_id)
    await store.close()
    assert sql("SELECT count(*) FROM rollout WHERE status = 'failed'") == [(71,)]


async def test_requeued_rollout_that_cannot_be_read_ends_with_one_attempt_more(store, reopen):
    started = await store.start_rollout("task")
    await store.add_span(span_of(started))
    await store.update_rollout(started.rollout_id, status="requeuing")
    store = await reopen("UPDATE rollout SET metadata = '{'")
    waiting = asyncio.create_task(store.dequeue_rollout(wait_seconds=60))
    await asyncio.sleep(0)
    good = await store.enqueue_rollout("good")
    assert (await waiting).rollout_id == good.rollout_id
    attempts = await store.query_attempts(started.rollout_id)
    assert [one.sequence_id for one in attempts] == [1, 2]
    assert (await store.statistics())["total_rollouts"] == 2


async def test_deadline_of_a_rollout_that_cannot_be_read_keeps_no_other_from_its_end(store, reopen):
    config = RolloutConfig(timeout_seconds=0.2)
    damaged, good = [await store.start_rollout(n, config=config) for n in range(2)]
    damage = "UPDATE rollout SET input = '{' WHERE n = 1"
    store = await reopen(damage, scan_interval_seconds=0.05)
    (ended,) = await store.wait_for_rollouts(rollout_ids=[good.rollout_id], timeout=20)
    assert (ended.rollout_id, ended.status) == (good.rollout_id, "failed")
    assert (await store.get_latest_attempt(damaged.rollout_id)).status == "preparing"
