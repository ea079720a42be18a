"""``agl store prune``: what ended long ago goes, in pieces; what is in use stays."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.interpreter import AGL, python
from tests.run_project import refuses

import agl_runs.pruning
from agl.store.base import AttemptEnd
from agl.types import Document, EnqueueRolloutRequest
from agl_postgres.store import PostgresLightningStore
from agl_runs.pruning import delete_rollouts, find_old
from agl_runs.records import RunStart, canary_run
from agl_runs.store import begin_run, end_run
from agl_sqlite import SqliteLightningStore
from agl_testing.store_steps import span_of


@pytest.fixture(params=["sqlite", "postgres"])
def place(request, tmp_path):
    return request.getfixturevalue("url") if request.param == "postgres" else tmp_path / "a.db"


def opened(place):
    is_file = not isinstance(place, str)
    return SqliteLightningStore(place) if is_file else PostgresLightningStore(place)


async def ended(store, count, run=None):
    """Rollouts that succeed, each with two spans and a document about it; their ids."""
    about = {} if run is None else {"run": run}
    tasks = [EnqueueRolloutRequest(input=n, metadata=about) for n in range(count)]
    await store.enqueue_many_rollouts(tasks)
    claimed = await store.dequeue_many_rollouts(limit=count)
    for one in claimed:
        ids = {"rollout_id": one.rollout_id, "attempt_id": one.attempt.attempt_id}
        await store.turn([span_of(one), span_of(one)], finish=AttemptEnd(**ids, status="succeeded"))
        key = one.rollout_id
        await store.put_documents([Document(kind="note", key=key, body=1, rollout_id=key)])
    return [one.rollout_id for one in claimed]


async def begun(store, run_id, **options):
    await begin_run(store, RunStart(run_id=run_id, algorithm="x", **options))


async def fill(store):
    await store.add_resources({})
    old = await ended(store, 25)
    await begun(store, "over")
    await end_run(store, "over", 1, "finished")
    old += await ended(store, 1, "over")
    await begun(store, "source")
    await end_run(store, "source", 1, "finished")
    await begun(store, "busy", host="elsewhere", pid=1)
    source = {"run_id": "source", "store": "here"}
    await begun(store, "derived", host="elsewhere", pid=1, derived_from=source)
    for run in ("busy", canary_run("busy"), "source"):
        await ended(store, 1, run)
    await store.add_resources({})
    await store.enqueue_rollout("queued")
    await store.start_rollout("running")
    return old


async def test_what_ended_before_goes_with_all_that_it_has(place, monkeypatch):
    monkeypatch.setattr(agl_runs.pruning, "_PAGE", 4)
    store = opened(place)
    old = await fill(store)
    before = time.time()
    new = await ended(store, 1)
    found, num_used = await find_old(store, before)
    assert (found, num_used) == (old, 3)
    expected = {"rollouts": 26, "attempts": 26, "spans": 52, "documents": 26}
    assert await delete_rollouts(store, found, only_count=True) == expected
    assert await delete_rollouts(store, found) == {**expected, "resources": 0}
    left = [one.rollout_id for one in await store.query_rollouts()]
    assert len(left) == 6
    assert new[0] in left
    assert len(await store.query_spans(new[0])) == 2
    first, _ = await store.query_resources()  # the runs that are running use it
    await end_run(store, "busy", 1, "finished")
    await end_run(store, "derived", 1, "finished")
    found, num_used = await find_old(store, before)
    assert num_used == 0
    assert (await delete_rollouts(store, found))["resources"] == 1
    assert first.resources_id not in [one.resources_id for one in await store.query_resources()]
    await store.close()


async def test_the_command_says_how_much_and_asks(place):
    store = opened(place)
    await ended(store, 3)
    await store.close()

    async def prune(*words):
        done = await asyncio.to_thread(python, *AGL, "store", "prune", place, *words)
        return done.stdout + done.stderr

    assert "ended more than 1h ago: nothing\n" in await prune("--keep", "1h")
    counts = "3 rollouts, 3 attempts, 3 documents, 6 spans"
    said = await prune("--keep", "0h", "--dry-run")
    assert f"ended more than 0h ago: {counts}\nnothing was deleted" in said
    assert "Delete them?" in await prune("--keep", "0h")  # and nobody says yes
    assert f"deleted: {counts}" in await prune("--keep", "0h", "--yes")
    assert "expected a number and h, d or w" in await prune("--keep", "30")


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ("'stuff' is a folder, and not that of a PostgreSQL", ["copy", "stuff", "new.db"]),
        ("'stuff' is a folder, and not that of a PostgreSQL", ["copy", "a.db", "stuff"]),
        ("'stuff' is a folder, and not that", ["prune", "stuff", "--keep", "1d", "--yes"]),
        ("is a server; agl store copy reads", ["copy", "http://127.0.0.1:1", "new.db"]),
        ("is a server; agl store copy reads", ["copy", "a.db", "http://127.0.0.1:1"]),
        ("are one store; name another", ["copy", "a.db", "./a.db"]),
        ("--path is of agl store itself", ["--path", "a.db", "copy", "a.db", "new.db"]),
        ("expected a number and h, d or w", ["prune", "a.db", "--keep", "1\u0663d"]),
        ("expected a number and h, d or w", ["prune", "a.db", "--keep", "9" * 30 + "d"]),
    ],
)
def test_what_is_no_store_is_refused_and_left_as_it_is(agl, here, words, arguments):
    (here / "stuff").mkdir()
    (here / "stuff" / "notes.txt").write_text("mine")
    asyncio.run(SqliteLightningStore("a.db").close())
    refuses(agl, words, "store", *arguments)
    assert [one.name for one in (here / "stuff").iterdir()] == ["notes.txt"]
    assert not (here / "new.db").exists()


def test_run_that_is_resumed_while_one_is_asked_keeps_its_rollouts(agl, url, monkeypatch):
    async def with_store(use):
        store = PostgresLightningStore(url)
        await use(store)
        await store.close()

    async def stop(store):
        await begun(store, "paused")
        await end_run(store, "paused", 1, "stopped")
        await ended(store, 2, "paused")

    def resume(*args, **options):
        go_on = with_store(lambda store: begun(store, "paused", host="elsewhere", pid=1))
        with ThreadPoolExecutor() as pool:
            pool.submit(asyncio.run, go_on).result()

    asyncio.run(with_store(stop))
    monkeypatch.setattr("click.confirm", resume)
    found = agl("store", "prune", url, "--keep", "0h")
    assert "ago: 2 rollouts" in found.out, found
    assert "deleted: nothing" in found.out, found
