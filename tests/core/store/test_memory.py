"""The store in memory: in its own process, an input may be any object."""

import dataclasses
import subprocess
import sys
from enum import Enum
from typing import Any

import pytest

import agl
from agl.errors import InvalidRecordError, UnknownRecordError


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


async def test_input_may_be_any_object_of_the_process(memory_store: agl.LightningStore) -> None:
    for given in [
        Task([1]),
        Colour.RED,
        (1, (2,)),
        {1: "a"},
        {"a": {3}},
        b"\xff",
        "\ud800",
        range(3),
    ]:
        for found in await seen(memory_store, given):
            assert (found, type(found)) == (given, type(given))
    assert all(isinstance(found, Plain) for found in await seen(memory_store, Plain()))


async def test_objects_come_back_however_long_the_queue_is(
    memory_store: agl.LightningStore,
) -> None:
    assert await seen(memory_store, Task([1]), num_before=2_000) == [Task([1])] * 5


async def test_an_object_in_the_store_is_the_stores_own(memory_store: agl.LightningStore) -> None:
    task = Task([1])
    rollout = await memory_store.enqueue_rollout(task)
    task.numbers.append(2)
    claimed = await memory_store.dequeue_rollout()
    assert claimed is not None
    assert claimed.input == Task([1])
    claimed.input.numbers.append(3)
    read = await memory_store.get_rollout_by_id(rollout.rollout_id)
    assert read is not None
    assert read.input == Task([1])


async def test_a_turn_and_a_new_input_keep_objects(memory_store: agl.LightningStore) -> None:
    rollout = await memory_store.enqueue_rollout("text")
    await memory_store.update_rollout(rollout.rollout_id, input=Task([1]))
    turn = await memory_store.turn([], limit=1, worker_id="w")
    assert [one.input for one in turn.claimed] == [Task([1])]
    await memory_store.update_rollout(rollout.rollout_id, input={"plain": [1]})
    read = await memory_store.get_rollout_by_id(rollout.rollout_id)
    assert read is not None
    assert read.input == {"plain": [1]}


async def test_a_refused_change_leaves_the_input(memory_store: agl.LightningStore) -> None:
    for given, other in (((1,), Plain()), ((1,), "text"), ("text", Plain())):
        rollout = await memory_store.enqueue_rollout(given)
        with pytest.raises(InvalidRecordError):
            await memory_store.update_rollout(
                rollout.rollout_id, input=other, metadata={"a": object()}
            )
        read = await memory_store.get_rollout_by_id(rollout.rollout_id)
        assert read is not None
        assert read.input == given


async def test_an_interrupt_between_two_steps_of_a_call_leaves_a_working_store(
    memory_store: agl.LightningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = vars(memory_store)["_tables"]
    tables.connection.execute("BEGIN")  # as an interrupt right after it leaves it
    await memory_store.enqueue_rollout(1)

    def interrupted() -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(tables, "flush", interrupted)
    with pytest.raises(KeyboardInterrupt):
        await memory_store.enqueue_rollout(2)
    await memory_store.enqueue_rollout(3)
    claimed = await memory_store.dequeue_many_rollouts(limit=5)
    assert [one.input for one in claimed] == [1, 3]


def test_a_forked_child_can_use_sqlite_while_the_store_is_busy() -> None:
    code = """
import asyncio, os, sqlite3, threading
import pytest

import agl
from agl.errors import InvalidRecordError, UnknownRecordError

store, stop = agl.InMemoryLightningStore(), threading.Event()

async def write():
    while not stop.is_set():
        await store.enqueue_rollout(1)

writer = threading.Thread(target=lambda: asyncio.run(write()))
writer.start()
for _ in range(60):
    pid = os.fork()
    if pid == 0:
        sqlite3.connect(":memory:").execute("CREATE TABLE t (a)")
        asyncio.run(agl.InMemoryLightningStore().enqueue_rollout(1))
        os._exit(0)
    os.waitpid(pid, 0)
stop.set()
writer.join()
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=250)


async def test_input_that_cannot_be_read_back_is_refused(memory_store: agl.LightningStore) -> None:
    deep: Any = 1
    for _ in range(230):
        deep = [deep]
    await memory_store.enqueue_rollout(0)
    with pytest.raises(InvalidRecordError, match="its input"):
        await memory_store.enqueue_rollout(0, metadata={"a": deep})
    claimed = await memory_store.dequeue_rollout()
    assert claimed is not None
    assert claimed.input == 0


async def test_text_that_no_store_keeps_is_refused_by_name(
    memory_store: agl.LightningStore,
) -> None:
    with pytest.raises(InvalidRecordError, match="no such text"):
        await memory_store.get_rollout_by_id("\ud800")
    await memory_store.enqueue_rollout(1)


def test_a_store_that_is_forgotten_leaves_no_connection_open() -> None:
    code = "import agl, gc; agl.InMemoryLightningStore(); gc.collect()"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert run.stderr == ""


async def test_a_refused_call_forgets_nothing(memory_store: agl.LightningStore) -> None:
    tables = vars(memory_store)["_tables"]
    await memory_store.enqueue_rollout(1)
    await memory_store.dequeue_rollout()
    known = dict(tables._rollouts)
    assert known
    with pytest.raises(UnknownRecordError):
        await memory_store.update_rollout("ro-nope", status="cancelled")
    assert tables._rollouts == known


def test_an_open_store_with_a_watchdog_ends_with_its_process() -> None:
    code = """
import asyncio
import agl

async def main():
    store = agl.InMemoryLightningStore(scan_interval_seconds=0.001)
    config = agl.RolloutConfig(timeout_seconds=100)
    await store.enqueue_rollout(1, config=config)
    await store.dequeue_rollout()
    await asyncio.sleep(0.05)
    return store

store = asyncio.run(main())
"""
    for _ in range(12):  # it crashed at about one end of four
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert (run.returncode, run.stderr) == (0, "")
