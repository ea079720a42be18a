import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from agl.errors import (
    ConfigError,
    StoreDiskError,
    StoreError,
    StoreUnavailableError,
    UnknownRecordError,
)
from agl.store.base import AttemptEnd
from agl.store.engine import operations as ops
from agl.store.retry import RETRY_SECONDS
from agl.store.sqlite import SqliteLightningStore, writer as sqlite_writer
from agl.store.sqlite.claim_keys import ClaimKeys
from agl.store.sqlite.tables import SqliteTables
from agl.types import EnqueueRolloutRequest, PromptTemplate, RolloutConfig, Span
from agl_runs.finding import open_to_read


def span_of(rollout, **attributes):
    return Span.from_attributes(
        attributes=attributes or {"i": 1},
        rollout_id=rollout.rollout_id,
        attempt_id=rollout.attempt.attempt_id,
        name="step",
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "agl.db"


# --- what stays


async def test_writer_that_fails_says_so_to_all_and_hangs_nobody(path, monkeypatch, caplog):
    def publish(self, effects):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(SqliteLightningStore, "_publish", publish)
    store = SqliteLightningStore(path)
    patience = RETRY_SECONDS.set(0.0)
    async with asyncio.timeout(60):
        await store.enqueue_rollout("stored")
        for call in (store.enqueue_rollout("too late"), store.check_health()):
            with pytest.raises(StoreUnavailableError, match=r"can't start new thread.*open it"):
                await call
        await store.close()
    RETRY_SECONDS.reset(patience)
    assert "its writer has failed" in caplog.text
    monkeypatch.undo()
    again = SqliteLightningStore(path)
    assert [one.input for one in await again.query_rollouts()] == ["stored"]
    await again.close()


async def test_files_are_their_owners_alone(path):
    store = SqliteLightningStore(path)
    await store.enqueue_rollout("a key may stand in it")
    assert {
        f.name: f.stat().st_mode & 0o077 for f in path.parent.iterdir() if f.is_file()
    } == dict.fromkeys(("agl.db", "agl.db-shm", "agl.db-wal", "agl.db.lock"), 0)
    await store.close()


async def test_everything_is_there_after_reopening(path):
    store = SqliteLightningStore(path)
    resources = await store.add_resources({"p": PromptTemplate(template="x")})
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(3)])
    claimed = await store.dequeue_rollout("w1")
    spans = await store.add_many_spans([span_of(claimed), span_of(claimed)])
    worker = await store.get_worker_by_id("w1")
    await store.dequeue_many_rollouts(limit=5)
    await store.dequeue_rollout("w2")
    await store.close()

    store = SqliteLightningStore(path)
    assert await store.get_latest_resources() == resources
    rollout = await store.get_rollout_by_id(claimed.rollout_id)
    assert (rollout.status, rollout.attempt.status) == ("running", "running")
    assert list(await store.query_spans(claimed.rollout_id)) == list(spans)
    assert await store.get_worker_by_id("w1") == worker
    assert (await store.get_worker_by_id("w2")).status == "idle"
    assert (await store.add_span(span_of(claimed))).sequence_id == 3
    new = await store.enqueue_rollout("after")
    assert (await store.dequeue_rollout()).rollout_id == new.rollout_id
    await store.close()


async def test_keys_are_known_after_reopening(path):
    tasks = [EnqueueRolloutRequest(input=1, key="a"), EnqueueRolloutRequest(input=2, key="b")]
    store = SqliteLightningStore(path)
    queued = await store.enqueue_many_rollouts(tasks[:1])
    await store.close()
    store = SqliteLightningStore(path)
    again = await store.enqueue_many_rollouts(tasks)
    assert again[0] == queued[0]
    assert (await store.statistics())["total_rollouts"] == 2
    assert [r.input for r in await store.dequeue_many_rollouts(limit=5)] == [1, 2]
    await store.close()


async def test_queue_keeps_its_order_over_a_restart(path):
    store = SqliteLightningStore(path)
    config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    await store.enqueue_many_rollouts(
        [EnqueueRolloutRequest(input=i, config=config) for i in range(3)]
    )
    first = await store.dequeue_rollout()
    await store.update_attempt(first.rollout_id, "latest", status="failed")
    await store.close()
    store = SqliteLightningStore(path)
    assert [one.input for one in await store.dequeue_many_rollouts(limit=9)] == [1, 2, 0]
    await store.close()


async def test_watchdog_goes_on_after_a_restart(path):
    store = SqliteLightningStore(path)
    started = await store.start_rollout("task", config=RolloutConfig(timeout_seconds=0.05))
    await store.close()
    store = SqliteLightningStore(path, scan_interval_seconds=0.02)
    ended = await store.wait_for_rollouts(rollout_ids=[started.rollout_id], timeout=4)
    assert [one.status for one in ended] == ["failed"]
    await store.close()


async def test_attempts_are_not_held_silent_for_the_time_that_the_store_was_away(path):
    store = SqliteLightningStore(path)
    config = RolloutConfig(unresponsive_seconds=2.0)
    alive = await store.start_rollout(1, config=config)
    dead = await store.start_rollout(2, config=config)
    late = await store.start_rollout(3, config=RolloutConfig(timeout_seconds=0.5))
    await store.close()
    await asyncio.sleep(2.1)  # the outage

    store = SqliteLightningStore(path, scan_interval_seconds=0.05)
    # Two scans are over, and a runner that is alive finds the way back.
    await store.wait_for_rollouts(rollout_ids=[late.rollout_id], timeout=0.3)
    await store.update_attempt(alive.rollout_id, alive.attempt.attempt_id, status="succeeded")
    assert (await store.get_rollout_by_id(alive.rollout_id)).status == "succeeded"
    await store.wait_for_rollouts(rollout_ids=[dead.rollout_id], timeout=20)
    assert (await store.get_latest_attempt(dead.rollout_id)).status == "unresponsive"
    # A deadline that was given holds, away or not.
    assert (await store.get_latest_attempt(late.rollout_id)).status == "timeout"
    await store.close()


async def test_closing_leaves_one_file(path):
    store = SqliteLightningStore(path)
    await store.enqueue_rollout("task")
    await store.close()
    assert [one.name for one in path.parent.iterdir()] == [path.name]


async def test_forgotten_close_loses_nothing(path):
    store = SqliteLightningStore(path)
    await store.enqueue_rollout("task")
    shutdown = store._shutdown
    del store
    assert not shutdown.alive
    store = SqliteLightningStore(path)
    assert (await store.query_rollouts()).total == 1
    await store.close()


CRASHING = """
import asyncio, sys
from agl.store.sqlite import SqliteLightningStore
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
        process = subprocess.Popen(
            [sys.executable, "-c", CRASHING, str(path), durability], stdout=stream
        )
        deadline = time.monotonic() + 60
        while log.stat().st_size < 20_000 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
        process.wait()
    lines = log.read_text().split("\n")[:-1]
    assert len(lines) > 200
    return [line.split() for line in lines]


@pytest.mark.parametrize("durability", ["power", "process"])
async def test_what_was_acknowledged_survives_kill_9(path, tmp_path, durability):
    said: dict[str, list[list[str]]] = {}
    for _ in range(2):
        for word, *rest in killed_after_a_while(path, durability, tmp_path / "said"):
            said.setdefault(word, []).append(rest)

    store = SqliteLightningStore(path)
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
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    connection.close()


# --- one bad operation does not harm its neighbours


async def test_failing_operation_fails_alone(path):
    store = SqliteLightningStore(path)
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
    assert "its input cannot be stored" in str(results[3])
    claimed = await store.dequeue_many_rollouts(limit=9)
    assert [one.input for one in claimed] == ["one", "two"]
    assert (await store.statistics())["total_rollouts"] == 3
    assert (await store.query_rollouts()).total == 3
    assert (await store.query_spans(started.rollout_id)).total == 1
    await store.close()


@pytest.mark.parametrize(
    "refusal", ["late report", "late turn", "unknown ids", "unknown resources"]
)
async def test_refusal_costs_the_store_nothing_that_it_knows(path, monkeypatch, refusal):
    store = SqliteLightningStore(path)
    ended, goes_on = await store.start_rollout(1), await store.start_rollout(2)
    ids = (ended.rollout_id, ended.attempt.attempt_id)
    await store.update_attempt(*ids, status="succeeded")
    late = AttemptEnd(rollout_id=ids[0], attempt_id=ids[1], status="failed")
    reloads = []
    monkeypatch.setattr(SqliteTables, "reload", lambda self: reloads.append(refusal))
    call = {
        "late report": lambda: store.update_attempt(*ids, status="failed"),
        "late turn": lambda: store.turn([span_of(ended)], finish=late),
        "unknown ids": lambda: store.add_span(
            span_of(ended).model_copy(update={"attempt_id": "at"})
        ),
        "unknown resources": lambda: store.enqueue_rollout(3, resources_id="rs-none"),
    }[refusal]
    results = await asyncio.gather(
        store.add_span(span_of(goes_on)),
        call(),
        store.enqueue_rollout("after"),
        return_exceptions=True,
    )
    assert [isinstance(one, StoreError) for one in results] == [False, True, False]
    assert reloads == []
    assert (await store.query_spans(goes_on.rollout_id)).total == 1
    await store.close()


async def test_operation_that_is_refused_after_a_change_is_undone_alone(path):
    store = SqliteLightningStore(path)
    started = await store.start_rollout("task")
    ids = (started.rollout_id, started.attempt.attempt_id)

    def refused(tables, now):
        ops.update_attempt(tables, now, *ids, {"metadata": {"by": "refused"}})
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
    await store.close()


def fill(store):
    """Let the file grow no further; returns what makes space again."""
    connection = store._parts.writer.connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count={pages}")
    return lambda: connection.execute("PRAGMA max_page_count=1000000")


async def until_failing(store):
    async with asyncio.timeout(20):
        while store._parts.writer.failing is None:  # noqa: ASYNC110 (another thread says so)
            await asyncio.sleep(0.005)


async def test_full_disk_is_reported_and_the_store_goes_on(path):
    RETRY_SECONDS.set(0.2)
    store = SqliteLightningStore(path)
    await store.enqueue_rollout("before")
    make_space = fill(store)
    with pytest.raises(StoreDiskError, match="full; nothing of this call was stored") as caught:
        await store.enqueue_rollout("x" * 1_000_000)
    assert str(path) in str(caught.value)
    assert (await store.query_rollouts()).total == 1
    make_space()
    await store.enqueue_rollout("after")
    assert [one.input for one in await store.query_rollouts()] == ["before", "after"]
    await store.close()


async def test_full_disk_for_one_call_leaves_its_neighbours_alone(path):
    RETRY_SECONDS.set(0.0)
    store = SqliteLightningStore(path)
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
    await store.close()


async def test_call_waits_for_space_on_the_disk(path):
    store = SqliteLightningStore(path)
    await store.check_health()
    make_space = fill(store)
    big = EnqueueRolloutRequest(input="x" * 1_000_000)
    waiting = asyncio.create_task(store.enqueue_many_rollouts([big]))
    await until_failing(store)
    assert not waiting.done()
    make_space()
    await waiting
    await store.check_health()
    assert (await store.query_rollouts()).total == 1
    await store.close()


async def test_calls_after_each_other_have_one_patience_with_a_full_disk(path, monkeypatch):
    RETRY_SECONDS.set(0.2)
    store = SqliteLightningStore(path)
    fill(store)
    submit, tries = store._submit_once, []
    monkeypatch.setattr(store, "_submit_once", lambda job: tries.append(job) or submit(job))
    for _ in range(3):
        with pytest.raises(StoreDiskError):
            await store.enqueue_rollout("x" * 1_000_000)
    assert len(tries) > 3
    assert len(set(tries)) == 3
    assert [tries.count(job) for job in dict.fromkeys(tries)][1:] == [1, 1]
    await store.close()


async def test_disk_that_fails_again_has_a_patience_of_its_own(path, monkeypatch, caplog):
    RETRY_SECONDS.set(0.0)
    clock = [0.0]
    monkeypatch.setattr(sqlite_writer, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    store = SqliteLightningStore(path)
    for clock[0] in (0.0, 3600.0):
        began, make_space = clock[0], fill(store)
        for clock[0] in (began, began + 20):
            with pytest.raises(StoreDiskError):
                await store.enqueue_rollout("x" * 1_000_000)
            assert store._parts.writer.failing_since == began
        make_space()
        clock[0] += 5
        await store.enqueue_rollout("healed")
    assert caplog.text.count("is tried again for a minute") == 2
    await store.close()


async def test_store_is_not_well_until_something_can_be_written_again(path):
    RETRY_SECONDS.set(0.0)
    store = SqliteLightningStore(path)
    make_space = fill(store)
    with pytest.raises(StoreDiskError):
        await store.enqueue_rollout("x" * 1_000_000)
    connection = store._parts.writer.connection
    connection.execute("PRAGMA query_only=ON")  # now not even little can be written
    with pytest.raises(StoreDiskError, match="readonly"):
        await store.check_health()
    connection.execute("PRAGMA query_only=OFF")
    make_space()
    await store.check_health()
    assert store._parts.writer.failing is None
    await store.close()


async def test_claim_that_a_failing_disk_refused_is_free_for_the_next(path):
    RETRY_SECONDS.set(0.0)
    store = SqliteLightningStore(path)
    rollout = await store.enqueue_rollout("task")
    connection = store._parts.writer.connection
    connection.execute("PRAGMA query_only=ON")
    with pytest.raises(StoreDiskError):
        await store.dequeue_rollout("w")
    connection.execute("PRAGMA query_only=OFF")
    claimed = await store.dequeue_rollout("w")
    assert claimed.rollout_id == rollout.rollout_id
    assert claimed.attempt.sequence_id == 1
    await store.close()


# --- the file belongs to one owner, and stays where it is


def move_away(file, replaced):
    file.rename(file.parent / "elsewhere")
    if replaced:
        file.write_bytes(b"something else")


def content_of(file):
    return file.read_bytes() if file.exists() else None


@pytest.mark.parametrize("which", ["", "-wal", ".lock"])
@pytest.mark.parametrize("replaced", [False, True])
async def test_file_that_goes_is_noticed(path, which, replaced):
    store = SqliteLightningStore(path)
    await store.enqueue_rollout("before")
    gone = Path(f"{path}{which}")
    move_away(gone, replaced)
    happened = "replaced by another file" if replaced else "deleted"
    for call in (store.check_health(), store.enqueue_rollout("after"), store.query_rollouts()):
        with pytest.raises(StoreUnavailableError, match=f"{gone.name}' was {happened}") as caught:
            await call
        assert not isinstance(caught.value, StoreDiskError)  # asking again would not help
    await store.close()
    if not which:
        assert content_of(gone) == (b"something else" if replaced else None)


def by_symlink(path):
    (path.parent / "sub").mkdir()
    other = path.parent / "sub" / "other.db"
    other.symlink_to(path)
    return other


def by_hard_link(path):
    other = path.parent / "other.db"
    other.hardlink_to(path)
    return other


OWNER = (
    "import sys; from agl.store.sqlite import SqliteLightningStore\n"
    "store = SqliteLightningStore(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
)


@pytest.mark.parametrize("other_name", [by_symlink, by_hard_link])
def test_second_owner_is_refused_by_every_name(path, other_name):
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        refused(other_name(path), "in use by (another )?process|hard links")
        process.kill()


@pytest.mark.parametrize("other_name", [Path, by_symlink, by_hard_link])
async def test_second_owner_in_the_same_process_is_refused_by_every_name(path, other_name):
    store = SqliteLightningStore(path)
    refused(other_name(path), "open in this process already|hard links")
    await store.enqueue_rollout("task")
    await store.close()


async def test_file_with_two_names_is_refused(path):
    await SqliteLightningStore(path).close()
    other = by_hard_link(path)
    refused(other, "2 names")
    other.unlink()
    await SqliteLightningStore(path).close()


async def test_lock_of_the_next_owner_is_left_alone(path):
    store = SqliteLightningStore(path)
    lock = Path(f"{path}.lock")
    move_away(lock, replaced=True)
    await store.close()
    assert content_of(lock) == b"something else"


async def test_store_stays_where_it_is_when_the_process_goes_elsewhere(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    store = SqliteLightningStore(path.name)
    monkeypatch.chdir("/")
    await store.enqueue_rollout("task")
    assert (await store.query_rollouts()).total == 1
    await store.close()


async def test_empty_dequeue_writes_nothing(path):
    store = SqliteLightningStore(path)
    await store.dequeue_rollout("w1")
    await store.get_worker_by_id("w1")
    size = os.stat(f"{path}-wal").st_size
    for _ in range(50):
        await store.dequeue_rollout("w1")
    assert os.stat(f"{path}-wal").st_size == size
    await store.close()


@pytest.mark.parametrize("delay", [0.0, 0.004, 0.1])
async def test_log_is_checkpointed_beside_the_writer(path, monkeypatch, delay):
    monkeypatch.setattr(sqlite_writer, "_CHECKPOINT_BYTES", 400_000)
    monkeypatch.setattr(sqlite_writer, "_RESTART_BYTES", 1_600_000)
    store = SqliteLightningStore(path, durability="process")
    writer = store._parts.writer
    checkpointed = writer.checkpointed.set

    def checkpointed_late():
        time.sleep(delay)
        checkpointed()

    monkeypatch.setattr(writer.checkpointed, "set", checkpointed_late)
    for _ in range(300):
        await store.enqueue_rollout("x" * 20_000)
    assert path.stat().st_size > 3_000_000
    # The file never shrinks: this is the longest that the log was. Without checkpoints: 20 MB.
    assert os.stat(f"{path}-wal").st_size < 2_500_000
    await store.close()


# --- opening


def refused(path, match, **options):
    with pytest.raises(StoreUnavailableError, match=match) as caught:
        SqliteLightningStore(path, **options)
    assert str(path) in str(caught.value)


def test_file_of_something_else_is_refused_and_unharmed(path):
    path.write_text("dear diary\n" * 1000)
    refused(path, "file is not a database.*No store")
    assert path.read_text() == "dear diary\n" * 1000
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_database_of_something_else_is_refused_and_unharmed(path):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE diary (page TEXT)")
    connection.close()
    before = path.read_bytes(), path.stat().st_mode
    refused(path, "no store of agl")
    assert (path.read_bytes(), path.stat().st_mode) == before


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TRIGGER own AFTER INSERT ON rollout BEGIN DELETE FROM span; END",
        "ALTER TABLE span RENAME TO span_; CREATE VIEW own AS SELECT * FROM span_",
        "CREATE VIRTUAL TABLE own USING fts5(a)",
    ],
)
async def test_file_that_brings_code_along_is_refused_to_writers_and_readers(path, sql):
    await SqliteLightningStore(path).close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(sql)
    refused(path, "'own', which SQLite would run whenever the store is used")
    with pytest.raises(StoreUnavailableError, match="'own', which SQLite would run"):
        open_to_read(path)


@pytest.mark.parametrize(("version", "made_by"), [(99, "a newer agl"), (1, "an older agl")])
async def test_file_of_another_version_is_refused_and_unharmed(path, version, made_by):
    await SqliteLightningStore(path).close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version={version}")
    before = path.read_bytes()
    refused(path, f"made by {made_by} .schema {version}, .* 'agl export' there")
    assert path.read_bytes() == before


@pytest.mark.parametrize("is_cut_off", [True, False])
async def test_damaged_file_is_refused_and_unharmed(path, is_cut_off):
    store = SqliteLightningStore(path)
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input="x" * 500)] * 200)
    await store.close()
    page, whole = 8192, path.read_bytes()
    content = whole[:page] + os.urandom(3 * page) + whole[4 * page :]
    content = whole[: 5 * page] if is_cut_off else content
    path.write_bytes(content)
    refused(path, "damaged")
    assert path.read_bytes() == content


def test_owner_in_another_process_is_named(path):
    code = (
        "import sys; from agl.store.sqlite import SqliteLightningStore\n"
        "store = SqliteLightningStore(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        assert process.stdout.readline() == b"open\n"
        refused(path, f"in use by process {process.pid}.*LightningStoreClient")
        process.kill()
        process.wait()
    asyncio.run(SqliteLightningStore(path).close())


def test_missing_folder_and_folder_in_place_of_the_file_are_named(path):
    refused(path.parent / "none" / "agl.db", "no folder")
    path.mkdir()
    refused(path, "not a file")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder nobody can write to")
def test_folder_that_cannot_be_written():
    refused(Path("/proc/self/agl.db"), "a folder that can be written")


def test_unknown_durability(path):
    with pytest.raises(ConfigError, match="'power' or 'process'"):
        SqliteLightningStore(path, durability="maybe")  # type: ignore[arg-type]
    assert not path.exists()


async def test_claim_is_answered_again_after_the_store_was_opened_anew(path):
    store = SqliteLightningStore(path)
    await store.enqueue_rollout(1)
    await store.enqueue_rollout(2)
    (first,) = await store.dequeue_many_rollouts(worker_id="w", key="first")
    (second,) = await store.dequeue_many_rollouts(worker_id="w", key="second")
    await store.update_attempt(second.rollout_id, "latest", status="running")
    await store.close()
    store = SqliteLightningStore(path)
    assert await store.dequeue_many_rollouts(worker_id="w", key="first") == [first]
    assert await store.dequeue_many_rollouts(worker_id="w", key="second") == []
    await store.close()


async def test_claim_that_is_repeated_while_the_store_reads_its_file_anew_is_answered_again(
    path, monkeypatch
):
    store = SqliteLightningStore(path)
    await store.enqueue_rollout(1)
    claimed = await store.dequeue_many_rollouts(worker_id="w", key="key")
    reading, go_on = threading.Event(), threading.Event()

    def add(*_):
        reading.set()
        assert go_on.wait(60)
        return known(*_)

    known = ClaimKeys.add
    monkeypatch.setattr(ClaimKeys, "add", add)

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
    await store.close()


async def test_claim_that_is_repeated_while_the_first_is_stored_is_answered_again(path):
    store = SqliteLightningStore(path)
    await store.enqueue_rollout(1)
    claims = []

    def the_first_takes_the_last():
        del store._has_queued
        job = sqlite_writer.Job(lambda tables, now: ops.claim(tables, now, 1, "w", "key"))
        claimed = job.bind_to_thread()
        store._parts.writer.submit(job)
        claims.extend(claimed.result(60))
        return store._has_queued()

    store._has_queued = the_first_takes_the_last
    assert await store.dequeue_many_rollouts(worker_id="w", key="key") == claims != []
    await store.close()


async def test_closed_store_says_so(path):
    store = SqliteLightningStore(path)
    await store.close()
    for call in (store.enqueue_rollout("task"), store.dequeue_rollout(), store.query_rollouts()):
        with pytest.raises(StoreUnavailableError, match="closed"):
            await call


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
async def test_forked_process_is_told_to_use_http(path, tmp_path):
    store = SqliteLightningStore(path)
    answer = tmp_path / "answer"
    pid = os.fork()
    if pid == 0:
        try:
            store._check_usable()
        except StoreUnavailableError as error:
            answer.write_text(str(error))
        os._exit(0)
    await asyncio.to_thread(os.waitpid, pid, 0)
    assert "LightningStoreClient" in answer.read_text()
    await store.enqueue_rollout("still works here")
    await store.close()


LEAVES_A_CHILD = """
import os, sys, time
from agl.store.sqlite import SqliteLightningStore

store = SqliteLightningStore(sys.argv[1])
if (child := os.fork()) == 0:
    os.write(1, b"forked\\n")  # whole, and not as print does, in two parts
    time.sleep(100)
os.write(1, f"{child}\\n".encode())
sys.stdin.read()
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_process_that_outlives_the_owner_does_not_hold_the_store(path):
    with subprocess.Popen(
        [sys.executable, "-c", LEAVES_A_CHILD, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        lines = {owner.stdout.readline().strip() for _ in range(2)}
        child = int(next(iter(lines - {"forked"})))
        try:
            refused(path, f"in use by process {owner.pid}")
            owner.stdin.close()
            owner.wait()
            asyncio.run(SqliteLightningStore(path).close())
        finally:
            os.kill(child, signal.SIGKILL)
