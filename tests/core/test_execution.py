"""The parts of the strategies: the flag between processes, and what a dead runner leaves."""

import multiprocessing
import os
import signal
import sys
import time
from typing import Any

import pytest
from tests.interpreter import python

import agl
from agl.execution.base import AT_WORK
from agl.runner.claims import Claims
from agl.utils.life_cycle import worker_name
from agl_processes.reports import mark_lost
from agl_processes.runner_process import run_as_process
from agl_processes.supervisor import RunnerDied

FORK: Any = multiprocessing.get_context("fork")


def test_flag_is_seen_by_other_processes_and_waited_for():
    flag, answer = agl.MultiprocessingEvent(ctx=FORK), agl.MultiprocessingEvent(ctx=FORK)

    def child() -> None:
        if flag.wait(30):
            answer.set()

    process = FORK.Process(target=child)
    process.start()
    assert not flag.wait(0.01)
    flag.set()
    assert answer.wait(30)
    process.join()
    flag.clear()
    assert not flag.is_set()


def looking_at(flag: Any) -> Any:
    """A process that looks at a flag, and sets it when it is told to end."""
    began = agl.MultiprocessingEvent(ctx=FORK)

    def look() -> None:
        signal.signal(signal.SIGTERM, lambda number, frame: flag.set())
        began.set()
        while not flag.is_set():
            pass

    process = FORK.Process(target=look)
    process.start()
    assert began.wait(30)
    return process


def test_process_killed_while_it_looks_at_the_flag_keeps_nobody_from_setting_it():
    # One that holds a lock when it is killed holds it for ever; so it stops while it looks.
    for _ in range(20):
        flag = agl.MultiprocessingEvent(ctx=FORK)
        looks = looking_at(flag)
        looks.kill()
        looks.join()
        sets = FORK.Process(target=flag.set)
        sets.start()
        sets.join(30)
        assert sets.exitcode == 0


def test_signal_handler_may_set_the_flag_that_its_process_looks_at():
    for _ in range(20):
        process = looking_at(agl.MultiprocessingEvent(ctx=FORK))
        process.terminate()
        process.join(30)
        exit_code = process.exitcode
        process.kill()
        process.join()
        assert exit_code == 0


def test_waiting_for_the_flag_costs_next_to_nothing():
    flag = agl.MultiprocessingEvent(ctx=FORK)
    began = time.process_time()
    assert not flag.wait(0.5)
    assert time.process_time() - began < 0.1


async def test_every_open_attempt_of_a_dead_runner_ends(memory_store):
    store, name = memory_store, worker_name(0, pid=1)
    cancelled = await store.start_rollout("cancelled by the algorithm", worker_id=name)
    await store.update_rollout(cancelled.rollout_id, status="cancelled")
    restarted = await store.start_rollout("restarted elsewhere", worker_id=name)
    await store.start_attempt(restarted.rollout_id, "other")
    running = await store.start_rollout("running", worker_id=name)
    done = await store.start_rollout("done", worker_id=name)
    await store.update_attempt(done.rollout_id, done.attempt.attempt_id, status="succeeded")
    bystander = await store.start_rollout("of another runner", worker_id=worker_name(1, pid=1))
    await mark_lost(store, RunnerDied(0, 1, "ended by SIGKILL", given_up=False))
    for rollout in (cancelled, restarted, running):
        attempt = (await store.query_attempts(rollout.rollout_id))[0]
        assert attempt.status == "unresponsive"
        assert (attempt.error.boundary, attempt.error.type) == ("lost", "RunnerDied")
        assert "ended by SIGKILL" in attempt.error.message
    statuses = {rollout.input: rollout.status for rollout in await store.query_rollouts()}
    assert statuses == {
        "cancelled by the algorithm": "cancelled",
        "restarted elsewhere": "preparing",
        "running": "failed",
        "done": "succeeded",
        "of another runner": "preparing",
    }
    worker = await store.get_worker_by_id(name)
    assert (worker.status, worker.current_attempt_id) == ("unknown", None)
    assert (await store.query_attempts(bystander.rollout_id))[0].status == "preparing"


async def test_what_else_a_dead_runner_had_is_marked_though_one_was_deleted(memory_store):
    name = worker_name(0, pid=1)
    sibling, gone = [await memory_store.start_rollout(n, worker_id=name) for n in range(2)]
    await memory_store.delete_rollouts([gone.rollout_id])
    await mark_lost(memory_store, RunnerDied(0, 1, "ended by SIGKILL", given_up=False))
    (attempt,) = await memory_store.query_attempts(sibling.rollout_id)
    assert attempt.status == "unresponsive"


async def test_runner_that_the_store_does_not_know_left_nothing(memory_store):
    await mark_lost(memory_store, RunnerDied(0, os.getpid(), "no device", given_up=True))
    assert not await memory_store.query_workers()


async def test_runner_says_once_that_it_is_at_work(memory_store):
    said: list[str] = []
    token = AT_WORK.set(lambda: said.append("at work"))
    try:
        claims = Claims(memory_store, "one", agl.ThreadingEvent(), left=9)
    finally:
        AT_WORK.reset(token)
    for task in (1, 2):
        await memory_store.enqueue_rollout(task)
        assert len(await claims.wait(1, 0.0, lambda: False)) == 1
        assert said == ["at work"]


def closed() -> Any:
    stream = open(os.devnull, "w")  # noqa: SIM115
    stream.close()
    return stream


def full() -> Any:
    stream = open("/dev/full", "w")  # noqa: SIM115
    stream.write("the disk has no space for this")
    return stream


@pytest.mark.parametrize("stream", [lambda: None, closed, full], ids=["none", "closed", "full"])
def test_process_ends_in_order_when_nobody_takes_its_output(stream):
    def main() -> None:
        async def work() -> None:
            sys.stdout = sys.stderr = stream()

        run_as_process(work, lambda message: None)

    child = FORK.Process(target=main)
    child.start()
    child.join(60)
    assert child.exitcode == 0


FORKED = """
import os, signal
import agl

# As asyncio does from Python 3.12 on.
os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))

@agl.rollout
def agent(task):
    return 1.0

agl.Trainer(algorithm="baseline", strategy="cs", n_runners=1).fit(agent, [1])
"""


def test_runner_starts_where_a_fork_has_reset_the_wakeup_descriptor():
    run = python("-c", FORKED)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(("is_orphan", "becomes"), [(False, "failed"), (True, "requeuing")])
async def test_death_of_the_supervisor_costs_a_rollout_no_attempt(memory_store, is_orphan, becomes):
    name = worker_name(0, pid=1)
    config = agl.RolloutConfig(max_attempts=1, retry_condition=["unresponsive"])
    claimed = await memory_store.start_rollout(0, config=config, worker_id=name)
    await mark_lost(memory_store, RunnerDied(0, 1, "it died", True, is_orphan=is_orphan))
    rollout = await memory_store.get_rollout_by_id(claimed.rollout_id)
    assert (rollout.status, rollout.attempt.error.type) == (becomes, "RunnerDied")
