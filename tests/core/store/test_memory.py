"""The store in memory: in its own process, an input may be any object."""

import asyncio
import dataclasses
import os
import signal
from enum import Enum
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

import agl
from agl.errors import InvalidRecordError, StoreUnavailableError
from agl.store.memory_tables import MemoryTables
from agl.store.table import Queue, Table, UndoLog
from agl.types import Document


@dataclasses.dataclass
class Task:
    numbers: list[int]


class Plain:
    """Knows neither JSON nor equality."""


class Colour(Enum):
    RED = 1


async def seen(store: agl.LightningStore, given: Any, num_before: int = 0) -> list[Any]:
    """The input, as each way of reading shows it."""
    for number in range(num_before):
        await store.enqueue_rollout(number)
    rollout = await store.enqueue_rollout(given)
    pages = await store.query_rollouts(rollout_id_in=[rollout.rollout_id])
    read = await store.get_rollout_by_id(rollout.rollout_id)
    claimed = (await store.dequeue_many_rollouts(limit=num_before + 1))[-1]
    await store.update_rollout(rollout.rollout_id, status="cancelled")
    (ended,) = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
    assert read is not None
    return [one.input for one in (rollout, pages[0], read, claimed, ended)]


async def test_input_may_be_any_object_of_the_process(memory_store):
    for given in [Task([1]), Colour.RED, (1, (2,)), {1: "a"}, {"a": {3}}]:
        for found in await seen(memory_store, given):
            assert (found, type(found)) == (given, type(given))


async def test_objects_come_back_however_long_the_queue_is(memory_store):
    assert await seen(memory_store, Task([1]), num_before=2_000) == [Task([1])] * 5


async def test_an_object_in_the_store_is_the_stores_own(memory_store):
    task = Task([1])
    rollout = await memory_store.enqueue_rollout(task)
    task.numbers.append(2)
    claimed = await memory_store.dequeue_rollout()
    assert claimed.input == Task([1])
    claimed.input.numbers.append(3)
    assert (await memory_store.get_rollout_by_id(rollout.rollout_id)).input == Task([1])


async def test_a_turn_and_a_new_input_keep_objects(memory_store):
    rollout = await memory_store.enqueue_rollout("text")
    await memory_store.update_rollout(rollout.rollout_id, input=Task([1]))
    turn = await memory_store.turn([], limit=1, worker_id="w")
    assert [one.input for one in turn.claimed] == [Task([1])]
    await memory_store.update_rollout(rollout.rollout_id, input={"plain": [1]})
    assert (await memory_store.get_rollout_by_id(rollout.rollout_id)).input == {"plain": [1]}


async def test_a_refused_change_leaves_the_input(memory_store):
    for given, other in (((1,), Plain()), ((1,), "text"), ("text", Plain())):
        rollout = await memory_store.enqueue_rollout(given)
        wrong = {"input": other, "metadata": {"a": object()}}
        with pytest.raises(InvalidRecordError):
            await memory_store.update_rollout(rollout.rollout_id, **wrong)
        assert (await memory_store.get_rollout_by_id(rollout.rollout_id)).input == given


async def test_an_interrupt_in_a_call_leaves_a_working_store(memory_store, monkeypatch):
    def interrupted(tables: MemoryTables) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    for name in ("roll_back", "commit"):
        await memory_store.enqueue_rollout(1)
        monkeypatch.setattr(MemoryTables, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            await memory_store.enqueue_rollout(2)
    await memory_store.enqueue_rollout(3)
    claimed = await memory_store.dequeue_many_rollouts(limit=5)
    assert [one.input for one in claimed] == [1, 1, 3]


@hypothesis.given(st.data())
def test_changes_are_undone_whole(data):
    undo_log = UndoLog()
    tables = [
        Table[Document](undo_log, "kind", "key", version=lambda one: one.version),
        Queue[Document](undo_log, "key"),
    ]
    names = {"kind": st.sampled_from("ab"), "key": st.sampled_from("xyz")}
    documents = st.builds(Document, **names, body=st.none(), version=st.integers(1, 3))

    def change() -> None:
        for document in data.draw(st.lists(documents, max_size=6)):
            table = data.draw(st.sampled_from(tables))
            rows = sorted(table.rows.values())
            if rows and data.draw(st.booleans()):
                table.delete(rows[0][1])
            else:
                table.save(document)

    def look() -> list[Any]:
        every, queue = tables
        found = [sorted(one.rows.items()) for one in tables]
        return [found, every.where("version", 1, 3), queue.first()]

    change()
    before = look()
    undo_log.clear()
    change()
    for table, key, row in reversed(undo_log):
        table.put(key, row)
    assert look() == before


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_fork_is_refused(memory_store):
    """It would work on a copy, which nobody else sees, or wait for a lock for ever."""
    with memory_store._lock:
        if (pid := os.fork()) == 0:
            signal.alarm(20)
            try:
                asyncio.run(_refused(memory_store))
                os._exit(0)
            finally:
                os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


async def _refused(store: agl.LightningStore) -> None:
    for call in (store.enqueue_rollout(1), store.query_rollouts()):
        with pytest.raises(StoreUnavailableError, match=rf"process {os.getppid()}; this is"):
            await call
