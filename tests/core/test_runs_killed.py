"""Runs whose process lives, or was killed, and who can tell."""

import asyncio
import fcntl
import os
import platform
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests import interpreter

import agl
from agl.errors import ConfigError, EndedEarlyError, StoreAwayError
from agl_runs import folders
from agl_runs.records import RunGeneration, canary_run
from agl_runs.store import begin_run, end_run, query_runs
from agl_sqlite import SqliteLightningStore
from agl_sqlite.lockfile import LockFile

from .toy_runs import Toy, agent, fit, runs_of, started

pytestmark = pytest.mark.usefixtures("here")


def test_second_trainer_of_a_run_is_refused_while_the_first_lives(store, tmp_path):
    words = f"in use by process {os.getpid()}"
    with folders.hold_folder(tmp_path / "out"), pytest.raises(ConfigError, match=words):
        fit(store, run="a", run_dir="out")
    assert runs_of(store) == []
    fit(store, run="a", run_dir="out")


def test_run_of_a_process_that_lives_is_refused_whatever_its_folder(store, tmp_path):
    process = interpreter.started("-c", "input()", stderr=subprocess.DEVNULL)
    about: dict[str, Any] = {"algorithm": "toy", "folder": str(tmp_path / "not-made")}
    start = agl.RunStart(run_id="a", pid=process.pid, host=platform.node(), **about)
    asyncio.run(begin_run(store, start))
    with pytest.raises(ConfigError, match=f"'a' is running: process {process.pid} on"):
        fit(store, run="a", resume=True, run_dir="out")
    process.communicate()
    assert fit(store, run="a", resume=True, run_dir="out").seen[0][1] == 2


NOBODY = 2**22 + 1  # no process has such a number
ELSEWHERE = [{"host": "elsewhere"}, {"host": platform.node(), "machine": "another of the name"}]


@pytest.mark.parametrize("where", ELSEWHERE, ids=["host", "machine"])
def test_run_of_another_machine_goes_on_and_says_what_nobody_knows(store, where):
    about = {"run_id": "a", "algorithm": "toy", "pid": NOBODY, **where}
    asyncio.run(begin_run(store, agl.RunStart(**about)))
    fit(store, run="a", resume=True)
    (difference,) = runs_of(store)[0].generations[1].differences
    said = f"nobody knows whether its last start has ended: process {NOBODY} on {where['host']}"
    assert difference == said


@pytest.mark.parametrize("where", ELSEWHERE, ids=["host", "machine"])
def test_run_of_another_machine_is_alive_though_its_folder_is_called_as_one_here(
    store, tmp_path, where
):
    about = {"run_id": "a", "algorithm": "toy", "pid": NOBODY, **where}
    asyncio.run(begin_run(store, agl.RunStart(folder=str(tmp_path / "out"), **about)))
    with pytest.raises(ConfigError, match="'a' is running in the same store"):
        fit(store, run="b", run_dir=tmp_path / "out")


def test_run_is_refused_while_another_one_lives_whose_rollouts_its_runners_would_take(store):
    process = interpreter.started("-c", "input()", stderr=subprocess.DEVNULL)
    start = agl.RunStart(run_id="a", pid=process.pid, host=platform.node(), algorithm="toy")
    asyncio.run(begin_run(store, start))
    with pytest.raises(
        ConfigError, match=f"'a' is running in the same store .process {process.pid}"
    ):
        fit(store, run="b")
    assert [run.run_id for run in runs_of(store)] == ["a"]
    process.communicate()
    done = agl.RunStart(run_id="c", pid=1, host="elsewhere", algorithm="toy")
    asyncio.run(begin_run(store, done))
    asyncio.run(end_run(store, "c", 1, "finished"))
    left = [
        asyncio.run(store.enqueue_rollout(5, metadata={"run": run}))
        for run in ("a", canary_run("a"), "c", None)
    ]
    fit(store, run="b")
    ids = [one.rollout_id for one in left]
    now = {
        one.rollout_id: one.status for one in asyncio.run(store.query_rollouts(rollout_id_in=ids))
    }
    assert [now[one] for one in ids] == ["cancelled", "cancelled", "cancelled", "succeeded"]


def test_a_run_killed_before_its_folder_had_its_id_keeps_no_other_out_of_that_folder(store):
    folder = folders.default_folder("out")
    about: dict[str, Any] = {"host": platform.node(), "algorithm": "toy", "folder": str(folder)}
    asyncio.run(begin_run(store, agl.RunStart(run_id="a", pid=os.getppid(), **about)))
    with folders.hold_folder(folder), pytest.raises(ConfigError, match="in the same store"):
        fit(store, run="b")
    fit(store, run_dir=folder)
    assert [run.status for run in runs_of(store)] == ["died", "finished"]


@pytest.mark.parametrize("given", [{}, {"run": "a"}])
def test_a_run_whose_end_the_store_missed_keeps_no_other_out_of_its_process(
    store, monkeypatch, given
):
    async def away(*args, **options):
        raise StoreAwayError("nobody answers")

    with monkeypatch.context() as patched:
        patched.setattr("agl_runs.recording.end_run", away)
        fit(store, **given)
    assert [run.status for run in runs_of(store)] == ["running"]
    fit(store, run="b")
    assert sorted(run.status for run in runs_of(store)) == ["finished", "running"]


def test_of_two_runs_that_begin_at_once_in_one_store_one_is_refused(store, monkeypatch):
    begin, start = begin_run, agl.RunStart(run_id="a", pid=os.getppid(), algorithm="toy")

    async def begin_second(store, other):
        await begin(store, start.model_copy(update={"host": platform.node()}))
        return await begin(store, other)

    monkeypatch.setattr("agl_runs.recording.begin_run", begin_second)
    with pytest.raises(ConfigError, match="'a' is running in the same store"):
        fit(store, run="b")
    assert {run.run_id: run.status for run in runs_of(store)} == {"a": "running", "b": "failed"}


@pytest.mark.parametrize("writes", [True, False], ids=["writes", "is at its end"])
def test_start_that_another_one_has_replaced_writes_nothing_and_says_so(store, writes):
    newer = agl.RunStart(run_id="a", algorithm="toy", pid=4711, host="elsewhere")

    class Replaced(Toy):
        name = "toy"

        async def run(self, train_dataset=None, val_dataset=None):
            await begin_run(store, newer)  # of a process that took this one for dead
            if writes:
                await self.get_store().enqueue_rollout(1)

    said = "another start has taken over run 'a': start 2, process 4711 on elsewhere"
    with pytest.raises(EndedEarlyError, match=said):
        fit(store, Replaced(), run="a")
    assert not asyncio.run(store.query_rollouts())
    (run,) = runs_of(store)
    assert (run.status, [one.outcome for one in run.generations]) == ("running", ["stopped", None])
    assert said in str(run.generations[0].error)


def run_of(pid: int, start_time: float, **about: Any) -> agl.Run:
    start = RunGeneration(number=1, start_time=start_time, pid=pid, host=platform.node())
    return agl.Run(run_id="a", algorithm="toy", create_time=0.0, generations=[start], **about)


KILLED = """
import os, sys, agl
@agl.rollout
def agent(task): return 1.0
@agl.algo
async def die(store):
    print("here", flush=True)
    sys.stdin.read()
agl.Trainer(algorithm=die, run="k", strategy="shm").fit(agent)
"""


HOLDING = """
from pathlib import Path
from agl_runs import folders
with folders.hold_folder(Path("held")):
    print("here", flush=True)
    input()
"""


KILLED_BASELINE = """
import asyncio, agl
@agl.rollout
async def agent(task):
    if task == 3:
        print("here", flush=True)
        await asyncio.Event().wait()
    return float(task)
agl.Trainer(algorithm=agl.Baseline(), run="k", strategy="shm").fit(agent, [1, 2, 3, 4, 5])
"""


def test_killed_baseline_goes_on_with_what_has_not_succeeded():
    process = started(KILLED_BASELINE)
    process.kill()
    process.communicate()
    ran: list[Any] = []

    @agl.rollout
    def agent(task: Any) -> float:
        ran.append(task)
        return float(task)

    baseline = agl.Baseline()
    options: dict[str, Any] = {"run": "k", "resume": True, "strategy": "shm"}
    trainer = agl.Trainer(algorithm=baseline, **options)
    trainer.fit(agent, [1, 2, 3, 4, 5])
    rollouts = asyncio.run(trainer.store.query_rollouts())
    asyncio.run(trainer.store.close())
    succeeded = [one.input for one in rollouts if one.status == "succeeded"]
    assert sorted(succeeded) == [1, 2, 3, 4, 5]
    assert {one.status for one in rollouts} == {"succeeded", "cancelled"}
    assert sorted(ran) == [3, 4, 5]
    assert sorted(baseline.rewards.values(), key=str) == [1, 2, 3, 4, 5]


def test_baseline_that_is_forced_runs_all_again(store):
    for again in (False, True):
        fit(store, agl.Baseline(), run="r", resume=again, force=again)
    assert len(asyncio.run(store.query_rollouts())) == 4


def test_what_a_dead_start_left_is_cancelled_before_a_runner_starts(store):
    ran: list[Any] = []
    left = {"run": "r", "generation": 1}
    for metadata in (left, {"run": "other"}):
        asyncio.run(store.enqueue_rollout("queued", metadata=metadata))
    asyncio.run(store.start_rollout("under way", metadata=left, worker_id="w"))
    asyncio.run(begin_run(store, agl.RunStart(run_id="r", algorithm="toy")))

    class Watch:
        def on_rollout_start(self, rollout: Any) -> None:
            ran.append(rollout.input)

    fit(store, run="r", resume=True, hooks=[Watch()])
    rollouts = {one.input: one.status for one in asyncio.run(store.query_rollouts())}
    assert rollouts["under way"] == "cancelled"
    assert ran == ["queued", 1, 2]  # that of the other run


@pytest.mark.parametrize("is_reaped", [True, False], ids=["reaped", "zombie"])
def test_run_whose_process_was_killed_is_shown_as_died_and_goes_on(is_reaped):
    process = started(KILLED)
    process.send_signal(signal.SIGKILL)
    if is_reaped:
        process.wait()
    else:  # as under a first process of a container that waits for nobody
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    store = SqliteLightningStore("agl-runs/k/store.db")
    (run,) = runs_of(store)
    for _ in range(2):  # to look changes nothing
        assert (run.status, folders.shown_status(run)) == ("running", "died")

    @agl.algo
    async def die(store: Any) -> None:
        (run,) = await query_runs(store)
        assert [each.outcome for each in run.generations] == ["died", None]
        assert folders.shown_status(run) == "running"

    agl.Trainer(algorithm=die, run="k", resume=True, store=store, strategy="shm").fit(agent)
    assert runs_of(store)[0].status == "finished"
    asyncio.run(store.close())
    process.communicate()


def test_zombie_that_left_no_lock_is_dead():
    process = started("print('here', flush=True); input()")
    run = run_of(process.pid, time.time())
    assert folders.is_alive(run)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not folders.is_alive(run)
    process.communicate()


@pytest.mark.parametrize("behind", [0.0, 60.0, 86_400.0])
def test_run_that_holds_its_folder_is_alive_whatever_clock_its_store_has(tmp_path, behind):
    process = started(HOLDING)
    run = run_of(process.pid, time.time() - behind, folder="held")
    assert folders.shown_status(run) == "running"
    process.communicate(b"\n")
    assert folders.shown_status(run) == "died"


def test_a_look_whether_a_run_lives_keeps_no_trainer_out(tmp_path):
    run = run_of(os.getpid(), 0.0, folder=str(tmp_path))
    lock = tmp_path / "trainer.lock"
    lock.write_text("4711")  # of a trainer that was killed
    with lock.open() as other_look, ThreadPoolExecutor(1) as pool:
        fcntl.flock(other_look, fcntl.LOCK_SH)
        assert folders.shown_status(run) == "died"
        assert lock.read_text() == "4711"
        starting = pool.submit(LockFile, lock)
        with pytest.raises(TimeoutError):
            starting.result(timeout=0.05)
        fcntl.flock(other_look, fcntl.LOCK_UN)
        starting.result().release()
