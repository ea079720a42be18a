"""Runs as documents of a store: their starts, their ends, and what is deleted with them."""

import asyncio
from typing import Any

import pytest

from agl.errors import DamagedRecordError, InvalidTransitionError, ReplacedError, UnknownRecordError
from agl.store.answers import FENCE
from agl.types import Document
from agl_runs.records import DatasetDigest, RunCode, RunStart
from agl_runs.store import begin_run, delete_run, end_run, fence_of, get_run, query_runs


def start_of(run_id: str = "run-1", **about: Any) -> RunStart:
    """A start of a run with something in every field."""
    given: dict[str, Any] = {
        **{"algorithm": "toy", "seed": 7, "config": {"algorithm": {"type": "toy", "rate": 0.5}}},
        "code": RunCode(versions={"python": "3.11"}, sources={"agent": "a1"}, commit="c1"),
        "datasets": {"train": DatasetDigest(num_tasks=3, digest="d1")},
        **{"folder": f"/runs/{run_id}", "pid": 4711, "host": "here"},
    }
    return RunStart(run_id=run_id, **{**given, **about})


async def test_run_comes_back_as_it_was_begun(memory_store):
    start = start_of()
    run = await begin_run(memory_store, start)
    assert await get_run(memory_store, "run-1") == run
    for name in ("algorithm", "seed", "config", "code", "folder", "datasets"):
        assert getattr(run, name) == getattr(start, name)
    (begun,) = run.generations
    assert (run.status, begun.number, begun.outcome) == ("running", 1, None)
    assert (begun.pid, begun.host, begun.end_time) == (4711, "here", None)
    assert begun.start_time == run.create_time > 1e9


async def test_next_start_is_the_next_generation(memory_store):
    first = await begin_run(memory_store, start_of())
    run = await begin_run(memory_store, start_of(seed=8, differences=["seed: 7 then, 8 now"]))
    assert (run.seed, run.create_time) == (8, first.create_time)
    assert [each.number for each in run.generations] == [1, 2]
    # The first one never said how it ended.
    assert [each.outcome for each in run.generations] == ["died", None]
    assert run.generations[1].differences == ["seed: 7 then, 8 now"]


async def test_starts_at_once_get_different_numbers(memory_store):
    begun = await asyncio.gather(*(begin_run(memory_store, start_of()) for _ in range(5)))
    assert sorted(run.generations[-1].number for run in begun) == [1, 2, 3, 4, 5]
    again = start_of(key="k")
    assert await begin_run(memory_store, again) == await begin_run(memory_store, again)


@pytest.mark.parametrize("outcome", ["finished", "failed", "stopped"])
async def test_end_of_the_last_generation_is_the_end_of_the_run(memory_store, outcome):
    await begin_run(memory_store, start_of())
    run = await end_run(memory_store, "run-1", 1, outcome, "because")
    assert await get_run(memory_store, "run-1") == run
    (ended,) = run.generations
    assert (run.status, ended.outcome, ended.error) == (outcome, outcome, "because")
    assert ended.end_time >= ended.start_time


async def test_run_that_was_thought_dead_may_say_how_it_ended(memory_store):
    await begin_run(memory_store, start_of())
    run = await end_run(memory_store, "run-1", 1, "died", "its process is gone")
    assert (run.status, run.generations[0].end_time) == ("died", None)
    assert (await end_run(memory_store, "run-1", 1, "finished")).status == "finished"


async def test_start_that_another_one_has_replaced_writes_nothing(memory_store):
    await begin_run(memory_store, start_of())
    token = FENCE.set(fence_of("run-1", 1))
    try:
        rollout = await memory_store.enqueue_rollout(1)
        run = await begin_run(memory_store, start_of())
        for write in (
            lambda: memory_store.enqueue_rollout(2),
            lambda: memory_store.put_documents([Document(kind="note", key="a", body=1)]),
            lambda: end_run(memory_store, "run-1", 1, "finished"),
        ):
            with pytest.raises(ReplacedError, match="'run-1': start 2, process 4711 on here"):
                await write()
    finally:
        FENCE.reset(token)
    assert [*await memory_store.query_rollouts()] == [rollout]
    assert await get_run(memory_store, "run-1") == run
    assert (await end_run(memory_store, "run-1", 1, "failed")).status == "running"


async def test_run_of_a_newer_version_says_that_it_cannot_be_read(memory_store):
    body = {"algorithm": "toy", "create_time": 5.0, "generations": "many"}
    await memory_store.put_documents([Document(kind="run", key="run-1", body=body)])
    (run,) = await query_runs(memory_store)
    assert (run.run_id, run.algorithm, run.status, run.create_time) == ("run-1", "toy", "died", 5.0)
    assert "'run-1' cannot be read" in run.problem
    with pytest.raises(DamagedRecordError, match="cannot be read"):
        await begin_run(memory_store, start_of())


async def test_end_of_what_was_not_begun_is_refused(memory_store):
    with pytest.raises(UnknownRecordError, match="run-1"):
        await end_run(memory_store, "run-1", 1, "finished")
    await begin_run(memory_store, start_of())
    with pytest.raises(UnknownRecordError, match="no generation 2"):
        await end_run(memory_store, "run-1", 2, "finished")


async def test_run_is_deleted_with_its_rollouts(memory_store, monkeypatch):
    await begin_run(memory_store, start_of())
    await begin_run(memory_store, start_of("other"))
    other, held = [
        await memory_store.start_rollout(1, metadata={"run": of}) for of in ("other", "run-1")
    ]
    note = Document(kind="note", key="a", body=1, rollout_id=held.rollout_id)
    marks = [Document(kind="ledger.lost", key=of, body={"run_id": of}) for of in ("other", "run-1")]
    prompts = [Document(kind="prompts", key=k, body={"run_id": "run-1"}) for k in "abc"]
    await memory_store.put_documents([note, *marks, *prompts])
    await end_run(memory_store, "run-1", 1, "finished")
    expected = {"resources": 0, "rollouts": 1, "attempts": 1, "documents": 5, "spans": 0}
    query, sizes = memory_store.query_documents, []

    async def counted(kind: str, **asked: Any) -> Any:
        found = await query(kind, **asked)
        sizes.append(len(found))
        return found

    monkeypatch.setattr("agl_runs.store.PAGE", 2)
    monkeypatch.setattr(memory_store, "query_documents", counted)
    assert await delete_run(memory_store, "run-1", only_count=True) == expected
    assert await delete_run(memory_store, "run-1") == expected
    assert max(sizes) == 2
    assert [run.run_id for run in await query_runs(memory_store)] == ["other"]
    assert [one.rollout_id for one in await memory_store.query_rollouts()] == [other.rollout_id]
    for kind in ("note", "prompts"):
        assert not await memory_store.query_documents(kind)
    assert [one.key for one in await memory_store.query_documents("ledger.lost")] == ["other"]
    assert (await begin_run(memory_store, start_of())).generations[-1].number == 1


async def test_run_that_runs_is_not_deleted(memory_store):
    await begin_run(memory_store, start_of())
    held = await memory_store.start_rollout(1, metadata={"run": "run-1"})
    with pytest.raises(InvalidTransitionError, match="running"):
        await delete_run(memory_store, "run-1")
    assert await memory_store.get_rollout_by_id(held.rollout_id) is not None
    await end_run(memory_store, "run-1", 1, "died")
    await delete_run(memory_store, "run-1")
    with pytest.raises(UnknownRecordError, match="run-1"):
        await delete_run(memory_store, "run-1")
