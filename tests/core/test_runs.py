"""Runs as the trainer keeps them: begun before anything else, ended after it, gone on with."""

import asyncio
import fcntl
import functools
import json
import os
import platform
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import agl
from agl.errors import AlgorithmError, ConfigError, StoppedError, StoreUnavailableError
from agl.store.forwarding import StandInStore
from agl_runs import folders
from agl_runs.description import commit_of, options_of
from agl_runs.differences import differences, options_that_shape, what_shapes
from agl_runs.local_runs import runs_here
from agl_runs.records import RunGeneration
from agl_runs.replay import replay
from agl_runs.store import begin_run, get_run, query_runs
from agl_sqlite import SqliteLightningStore
from agl_sqlite.file import open_to_read
from agl_sqlite.lockfile import LockFile


@agl.rollout
def agent(task: Any) -> float:
    return float(task)


class Toy(agl.Algorithm):
    """Runs its tasks once; notes which start of which run it was."""

    def __init__(self, fails: bool = False, stops: bool = False, seed: int = 7) -> None:
        self.fails, self.stops, self.seed = fails, stops, seed
        self.seen: list[Any] = []

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        store = self.get_store()
        run_id, generation = self.get_run() or ("", 0)
        record = await get_run(store, run_id)
        self.seen.append((run_id, generation, self.get_run_folder(), record))
        requests = [agl.EnqueueRolloutRequest(input=task) for task in train_dataset or ()]
        rollouts = await store.enqueue_many_rollouts(requests)
        await store.wait_for_rollouts(rollout_ids=[one.rollout_id for one in rollouts])
        if self.fails:
            raise RuntimeError("it broke")
        if self.stops:
            raise StoppedError("told to stop")


def fit(store: Any = None, algorithm: Any = None, tasks: Any = (1, 2), **options: Any) -> Any:
    algorithm = algorithm or Toy()
    trainer = agl.Trainer(algorithm=algorithm, store=store, strategy="shm", **options)
    trainer.fit(agent, list(tasks))
    return algorithm


def runs_of(store: Any) -> list[agl.Run]:
    return list(asyncio.run(query_runs(store)))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_run_is_recorded_before_the_algorithm_starts_and_after_it_has_ended() -> None:
    store = agl.InMemoryLightningStore()
    toy = fit(store)
    ((run_id, generation, folder, during),) = toy.seen
    (run,) = runs_of(store)
    assert (run.run_id, generation, during.status) == (run_id, 1, "running")
    assert (run.status, run.generations[0].outcome) == ("finished", "finished")
    assert (run.algorithm, run.seed) == ("toy", 7)
    assert run.config == {"algorithm": {"type": "toy", "fails": False, "stops": False, "seed": 7}}
    assert folder == Path(run.folder or "") == Path("agl-runs", run_id).absolute()
    assert not folder.exists()  # nobody wrote anything
    assert (run.generations[0].pid, run.datasets["train"].num_tasks) == (os.getpid(), 2)
    assert {"python", "agl-core"} <= run.code.versions.keys()
    assert run.code.agent is not None


def test_rollouts_say_to_which_run_they_belong() -> None:
    store = agl.InMemoryLightningStore()
    run_id = fit(store).seen[0][0]
    for rollout in asyncio.run(store.query_rollouts()):
        assert rollout.metadata == {"run": run_id, "generation": 1}


def test_what_the_algorithm_says_of_a_rollout_stays() -> None:
    class Labels(Toy):
        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            await self.get_store().enqueue_rollout(1, metadata={"run": "mine", "step": 3})
            await self.get_store().start_rollout(1, metadata={"step": 4})

    store = agl.InMemoryLightningStore()
    fit(store, Labels(), run="r")
    one, two = asyncio.run(store.query_rollouts())
    assert one.metadata == {"run": "mine", "generation": 1, "step": 3}
    assert two.metadata == {"run": "r", "generation": 1, "step": 4}


@pytest.mark.parametrize("strategy", ["shm", "cs"])
def test_run_that_fails_says_why(strategy: str) -> None:
    store = SqliteLightningStore("kept.db")
    trainer = agl.Trainer(
        algorithm=Toy(fails=True), store=store, strategy=strategy, port=_port(strategy)
    )
    with pytest.raises(AlgorithmError) as caught:
        trainer.fit(agent, [1])
    (run,) = runs_of(store)
    assert run.status == "failed"
    assert "it broke" in (run.generations[0].error or "")
    assert f"go on with Trainer(run='{run.run_id}', resume=True)" in caught.value.__notes__[0]
    asyncio.run(store.close())


def test_interrupted_run_can_go_on() -> None:
    class Interrupted(Toy):
        name = "toy"

        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            signal.raise_signal(signal.SIGINT)
            await asyncio.Event().wait()

    store = agl.InMemoryLightningStore()
    with pytest.raises(KeyboardInterrupt):
        fit(store, Interrupted())
    (run,) = runs_of(store)
    assert (run.status, run.generations[0].error) == ("stopped", "interrupted")
    assert fit(store, run=run.run_id, resume=True).seen[0][:2] == (run.run_id, 2)
    (run,) = runs_of(store)
    assert [each.outcome for each in run.generations] == ["stopped", "finished"]


class Writing(Toy):
    """Notes its run in its folder, as algorithms do that keep checkpoints there."""

    name = "toy"

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        run_id, generation = self.get_run() or ("", 0)
        text = json.dumps({"run": run_id, "generation": generation})
        folder = self.get_run_folder() or Path()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text(text)
        await super().run(train_dataset, val_dataset)


@pytest.mark.parametrize("fails", [False, True], ids=["stops", "fails"])
@pytest.mark.parametrize(
    "options",
    [{"run": "a"}, {"run": "a", "run_dir": "out"}, {"run_dir": "out"}, {}],
    ids=["run", "run and run_dir", "run_dir", "none"],
)
def test_what_a_run_says_of_going_on_can_be_followed(options: dict[str, Any], fails: bool) -> None:
    first = Writing(fails=fails, stops=True)
    with pytest.raises((StoppedError, AlgorithmError)) as caught:
        fit(algorithm=first, **options)
    asyncio.run(first.get_trainer().store.close())
    said = "".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    advice = re.search(r"go on with Trainer\((.*?)\) and what else it had", said)
    assert advice is not None
    second = fit(force=True, **eval(f"dict({advice[1]})"))
    assert second.seen[0][:2] == (first.seen[0][0], 2)
    asyncio.run(second.get_trainer().store.close())


class OwnStore(agl.LightningStore):
    """Of a third party, in memory, as it says by saying nothing."""

    def __init__(self) -> None:
        self._inner = agl.InMemoryLightningStore()

    async def call(self, operation: str, arguments: dict[str, Any]) -> Any:
        return await getattr(self._inner, operation)(**arguments)


def test_run_that_is_in_memory_only_says_that_it_cannot_go_on() -> None:
    with pytest.raises(StoppedError, match=r"it cannot go on after this process.*run=\.\.\."):
        fit(StandInStore(agl.InMemoryLightningStore()), Toy(stops=True))
    with pytest.raises(StoppedError, match="it cannot go on after this process"):
        fit(OwnStore(), Toy(stops=True))
    with pytest.raises(AlgorithmError) as caught:
        fit(algorithm=Toy(fails=True))
    assert not hasattr(caught.value, "__notes__")


def test_baseline_names_a_rollout_that_is_gone_and_runs_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Deleting(StandInStore):
        async def wait_for_rollouts(self, *, rollout_ids: Any, timeout: float | None = None) -> Any:
            (one,) = await self._store.query_rollouts(rollout_id_in=rollout_ids)
            if one.input == 1:
                await self._store.delete_rollouts(rollout_ids)
                return []
            return await self._store.wait_for_rollouts(rollout_ids=rollout_ids, timeout=timeout)

    caplog.set_level("INFO", "agl")
    store = Deleting(agl.InMemoryLightningStore())
    result = agl.Trainer(store=store, strategy="shm", algorithm="baseline").fit(agent, [0, 1, 2])
    assert result.rollouts == {"succeeded": 2}
    assert "was deleted, and counts for nothing" in caplog.text


def test_replay_of_a_run_that_there_is_not_makes_nothing(tmp_path: Path) -> None:
    trainer = agl.Trainer(algorithm=Toy(), run="typo", strategy="shm")
    with pytest.raises(ConfigError, match=r"there is no run in .*typo.*See: agl runs"):
        replay(trainer, agent, 1)
    assert list(tmp_path.iterdir()) == []


def test_run_goes_on_in_its_own_folder_and_store() -> None:
    first = Toy(stops=True)
    words = r"before its end, told to stop; go on with Trainer\(run='a-run', resume=True\)"
    with pytest.raises(StoppedError, match=words):
        fit(algorithm=first, run="a-run")
    assert Path("agl-runs/a-run/store.db").is_file()
    asyncio.run(first.get_trainer().store.close())
    second = fit(run="a-run", resume=True, force=True)
    assert [start[:2] for start in first.seen + second.seen] == [("a-run", 1), ("a-run", 2)]
    assert first.seen[0][2] == second.seen[0][2] == Path("agl-runs/a-run").absolute()
    store = second.get_trainer().store
    (run,) = runs_of(store)
    assert [each.outcome for each in run.generations] == ["stopped", "finished"]
    assert (run.status, run.generations[0].error) == ("finished", "told to stop")
    assert asyncio.run(store.query_rollouts()).total == 4
    asyncio.run(store.close())


def test_run_that_goes_on_has_the_folder_that_it_had(tmp_path: Path) -> None:
    store = agl.InMemoryLightningStore()
    fit(store, run="a", run_dir="elsewhere")
    assert fit(store, run="a", resume=True).seen[0][2] == tmp_path / "elsewhere"


def test_run_that_was_moved_goes_on_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("old").mkdir()
    monkeypatch.chdir(tmp_path / "old")
    asyncio.run(fit(run="a").get_trainer().store.close())
    (tmp_path / "old").rename(tmp_path / "new")
    monkeypatch.chdir(tmp_path / "new")
    toy = fit(run="a", resume=True)
    (run,) = runs_of(toy.get_trainer().store)
    assert toy.seen[0][2] == tmp_path / "new/agl-runs/a" == Path(run.folder or "")
    assert not (tmp_path / "old").exists()
    asyncio.run(toy.get_trainer().store.close())


def test_store_that_this_process_has_says_so() -> None:
    toy = fit(run="a")
    with pytest.raises(StoreUnavailableError, match="open in this process already"):
        fit(run="a", resume=True)
    asyncio.run(toy.get_trainer().store.close())
    asyncio.run(fit(run="a", resume=True).get_trainer().store.close())


async def test_trainer_in_a_running_loop_says_what_to_do() -> None:
    toy, tasks = Toy(), [1, 2]
    trainer = agl.Trainer(algorithm=toy, strategy="shm")
    with pytest.raises(ConfigError, match=r"await asyncio\.to_thread\(trainer\.fit"):
        trainer.fit(agent, tasks)
    await asyncio.to_thread(trainer.fit, agent, tasks)
    assert len(toy.seen) == 1


def test_new_run_of_a_name_that_there_is_is_refused() -> None:
    store = agl.InMemoryLightningStore()
    fit(store, run="a")
    with pytest.raises(ConfigError, match=r"'a' is in the store already .finished.*resume=True"):
        fit(store, run="a")
    assert [len(run.generations) for run in runs_of(store)] == [1]


def test_going_on_with_what_there_is_not_names_what_there_is() -> None:
    store = agl.InMemoryLightningStore()
    fit(store, run="a")
    with pytest.raises(ConfigError, match=r"no run 'b' in this store.*newest here: a"):
        fit(store, run="b", resume=True)
    fit(run="c")
    with pytest.raises(ConfigError, match=r"no run 'b' to go on with.*Runs here: c"):
        fit(run="b", resume=True)
    assert not Path("agl-runs/b").exists()
    with pytest.raises(ConfigError, match="resume=True needs the id"):
        fit(store, resume=True)


@pytest.mark.parametrize("run_id", ["a/b", "", "..", "-x"])
def test_id_that_names_no_folder_is_refused(run_id: str) -> None:
    with pytest.raises(ConfigError, match="the id of a run names its folder"):
        fit(run=run_id)


def test_run_that_would_be_another_is_refused_and_forced() -> None:
    store = agl.InMemoryLightningStore()
    fit(store, run="a")
    with pytest.raises(ConfigError, match=r"algorithm\.seed: 7 then, 8 now; train tasks: 2 tasks"):
        fit(store, Toy(seed=8), [1], run="a", resume=True)
    assert [len(run.generations) for run in runs_of(store)] == [1]
    fit(store, Toy(seed=8), [1], run="a", resume=True, force=True)
    (run,) = runs_of(store)
    assert run.seed == 8
    assert run.generations[1].differences[0] == "algorithm.seed: 7 then, 8 now"


def test_run_of_another_algorithm_is_refused() -> None:
    store = agl.InMemoryLightningStore()
    fit(store, run="a")
    with pytest.raises(ConfigError, match="run 'a' is one of 'toy', and this is 'baseline'"):
        fit(store, agl.Baseline(), run="a", resume=True)


def test_folder_of_another_run_is_refused() -> None:
    Path("out").mkdir()
    Path("out/run.json").write_text('{"run": "other", "generation": 2}')
    with pytest.raises(ConfigError, match="holds run 'other'"):
        fit(run="a", run_dir="out")


def test_folder_says_which_run_goes_on_where_nobody_else_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Path("out").mkdir()
    Path("out/run.json").write_text('{"run": "other", "generation": 2}')
    # A store in memory knows of no earlier starts.
    assert fit(run_dir="out").seen[0][:2] == ("other", 3)
    assert "the store has no record of run other" in caplog.text


def test_folder_that_an_algorithm_names_is_made_by_it() -> None:
    class Making(agl.Algorithm):
        run_dir = "own"

        def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            Path(self.run_dir).mkdir()

    fit(algorithm=Making())
    assert Path("own").is_dir()


def test_run_that_its_folder_names_is_refused_where_it_would_be_another() -> None:
    store = agl.InMemoryLightningStore()
    fit(store, Writing(), run_dir="out")
    with pytest.raises(ConfigError, match=r"algorithm\.seed: 7 then, 8 now"):
        fit(store, Writing(seed=8), run_dir="out")
    assert fit(store, Writing(seed=8), run_dir="out", force=True).seen[0][1] == 2


def test_store_that_keeps_no_runs_is_used_all_the_same() -> None:
    class Older(agl.LightningStore):
        def __init__(self) -> None:
            self.inside = agl.InMemoryLightningStore()

        async def call(self, operation: Any, arguments: dict[str, Any]) -> Any:
            if "_documents" in operation:
                return await super().call(operation, arguments)
            return await getattr(self.inside, operation)(**arguments)

    class Unasking(Toy):
        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            self.seen.append(self.get_run())

    store = Older()
    assert fit(store, Unasking()).seen[0][1] == 1
    with pytest.raises(agl.AglError, match="Older has no query_documents"):
        fit(store, Unasking(), run="a")


def test_second_trainer_of_a_run_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    store = agl.InMemoryLightningStore()
    words = f"in use by process {os.getpid()}"
    with folders.held(tmp_path / "out"), pytest.raises(ConfigError, match=words):
        fit(store, run="a", run_dir="out")
    assert runs_of(store) == []
    fit(store, run="a", run_dir="out")


def test_run_of_a_process_that_lives_is_refused_whatever_its_folder(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    store = agl.InMemoryLightningStore()
    about: dict[str, Any] = {"algorithm": "toy", "folder": str(tmp_path / "not-made")}
    start = agl.RunStart(run_id="a", pid=process.pid, host=platform.node(), **about)
    asyncio.run(begin_run(store, start))
    with pytest.raises(ConfigError, match=f"'a' is running: process {process.pid} on"):
        fit(store, run="a", resume=True, run_dir="out")
    process.communicate()
    assert fit(store, run="a", resume=True, run_dir="out").seen[0][1] == 2


def test_run_of_another_machine_goes_on_and_says_what_nobody_knows() -> None:
    store = agl.InMemoryLightningStore()
    asyncio.run(
        begin_run(store, agl.RunStart(run_id="a", algorithm="toy", pid=1, host="elsewhere"))
    )
    fit(store, run="a", resume=True)
    (difference,) = runs_of(store)[0].generations[1].differences
    assert difference == "nobody knows whether its last start has ended: process 1 on elsewhere"


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
with folders.held(Path("held")):
    print("here", flush=True)
    input()
"""


def started(script: str) -> "subprocess.Popen[bytes]":
    """A process that runs a script, which has said a line and waits for another."""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"here\n"
    return process


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


def test_killed_baseline_goes_on_with_what_has_not_succeeded() -> None:
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


def test_baseline_that_is_forced_runs_all_again() -> None:
    store = agl.InMemoryLightningStore()
    for again in (False, True):
        fit(store, agl.Baseline(), run="r", resume=again, force=again)
    assert len(asyncio.run(store.query_rollouts())) == 4


def test_what_a_dead_start_left_is_cancelled_before_a_runner_starts() -> None:
    store = agl.InMemoryLightningStore()
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
def test_run_whose_process_was_killed_is_shown_as_died_and_goes_on(is_reaped: bool) -> None:
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


def test_zombie_that_left_no_lock_is_dead() -> None:
    process = started("print('here', flush=True); input()")
    run = agl.Run(
        run_id="a",
        algorithm="toy",
        create_time=0.0,
        generations=[
            RunGeneration(number=1, start_time=time.time(), pid=process.pid, host=platform.node())
        ],
    )
    assert folders.is_alive(run)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not folders.is_alive(run)
    process.communicate()


@pytest.mark.parametrize("behind", [0.0, 60.0, 86_400.0])
def test_run_that_holds_its_folder_is_alive_whatever_clock_its_store_has(
    tmp_path: Path, behind: float
) -> None:
    process = started(HOLDING)
    start = RunGeneration(
        number=1, start_time=time.time() - behind, pid=process.pid, host=platform.node()
    )
    run = agl.Run(run_id="a", algorithm="toy", create_time=0.0, folder="held", generations=[start])
    assert folders.shown_status(run) == "running"
    process.communicate(b"\n")
    assert folders.shown_status(run) == "died"


def test_a_look_whether_a_run_lives_keeps_no_trainer_out(tmp_path: Path) -> None:
    start = RunGeneration(number=1, start_time=0.0, pid=os.getpid(), host=platform.node())
    run = agl.Run(
        run_id="a", algorithm="toy", create_time=0.0, folder=str(tmp_path), generations=[start]
    )
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


@pytest.mark.parametrize("can_be_logged", [True, False])
async def test_who_reads_a_store_sees_what_another_one_writes_later(
    tmp_path: Path, can_be_logged: bool
) -> None:
    file = tmp_path / "store.db"

    async def add() -> None:
        store = agl.SqliteLightningStore(file)
        await store.enqueue_many_rollouts([agl.EnqueueRolloutRequest(input="x" * 3000)] * 50)
        await store.close()

    await add()
    if not can_be_logged:  # as where the folder cannot be written
        (tmp_path / "store.db-shm").mkdir()
    with closing(open_to_read(file)) as connection:
        counted = connection.execute("SELECT count(*) FROM rollout").fetchone()
        if can_be_logged:
            await add()
            counted += connection.execute("SELECT count(*) FROM rollout").fetchone()
    assert counted == ((50, 100) if can_be_logged else (50,))
    assert not can_be_logged or os.listdir(tmp_path) == ["store.db"]


async def test_records_in_a_log_that_cannot_be_read_are_not_passed_over(tmp_path: Path) -> None:
    killed = tmp_path / "agl-runs" / "killed"
    killed.mkdir(parents=True)
    store = agl.SqliteLightningStore(tmp_path / "store.db")
    await store.enqueue_rollout("acknowledged")
    for name in ("store.db", "store.db-wal"):
        shutil.copy(tmp_path / name, killed)
    await store.close()
    (killed / "store.db-shm").symlink_to("nowhere")  # as where the folder cannot be written
    with pytest.raises(StoreUnavailableError, match=r"'store.db-wal' beside it has records"):
        open_to_read(killed / "store.db")
    (run,) = runs_here(killed)
    assert "'store.db-wal' beside it has records" in (run.problem or "")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"no database" * 99, "file is not a database. No store, or damaged"),
        (b"", "it has no tables"),
        (b"CREATE TABLE theirs (a)", "no store of agl"),
    ],
)
def test_readers_say_of_a_file_that_it_is_no_store(
    content: bytes, told: str, tmp_path: Path
) -> None:
    file = tmp_path / "store.db"
    if content.startswith(b"CREATE"):
        with closing(sqlite3.connect(file)) as connection:
            connection.execute(content.decode())
    else:
        file.write_bytes(content)
    with pytest.raises(StoreUnavailableError, match=f"store.db'.*{told}"):
        open_to_read(file)


def test_commit_is_that_of_the_repository_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> str:
        about = ("-c", "user.name=n", "-c", "user.email=e")
        command = ["git", "-C", str(tmp_path), *about, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert commit_of(tmp_path) is None
    git("init", "--quiet")
    assert commit_of(tmp_path) is None
    git("commit", "--quiet", "--allow-empty", "-m", "first")
    (tmp_path / "src").mkdir()
    head = git("rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "another"))
    assert commit_of(tmp_path / "src") == head
    (tmp_path / "git").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "git").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert commit_of(tmp_path / "src", timeout=0.1) is None


def test_folder_with_a_run_goes_on_with_that_only_as_what_it_was(tmp_path: Path) -> None:
    class Writes(Toy):
        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            await super().run(train_dataset, val_dataset)
            run, generation, folder, _ = self.seen[-1]
            (folder / "run.json").write_text(f'{{"run": "{run}", "generation": {generation}}}')

    store = agl.InMemoryLightningStore()
    fit(store, Writes(), run_dir="out")
    with pytest.raises(ConfigError, match=r"seed: 7 then, 8 now.*give another run_dir, or go on"):
        fit(store, Writes(seed=8), run_dir="out")
    fit(store, Writes(seed=8), run_dir="out", force=True)
    (run,) = runs_of(store)
    assert (run.seed, len(run.generations)) == (8, 2)


def test_folder_of_what_was_not_started_is_not_left(tmp_path: Path) -> None:
    class Refuses(Toy):
        async def clear_leftovers(self, store: Any) -> None:
            raise ConfigError("not so")

    with pytest.raises(ConfigError, match="not so"):
        fit(agl.InMemoryLightningStore(), Refuses(), run_dir="out")
    assert not (tmp_path / "out").exists()


class Base(agl.Algorithm):
    safe_options = frozenset({"progress"})

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        """Nothing is learned."""


class Steps(Base):
    growing_options = frozenset({"steps", "max_trained_tokens"})

    def __init__(self, steps: int = 3, epochs: int = 1, progress: str = "bar") -> None:
        self.steps, self.epochs, self.progress = steps, epochs, progress


@pytest.mark.parametrize(
    ("name", "then", "now", "is_safe"),
    [
        ("algorithm.steps", 3, 4, True),
        ("algorithm.steps", 3, 2, False),
        ("algorithm.max_trained_tokens", 100, 200, True),
        ("algorithm.max_trained_tokens", 100, None, True),
        ("algorithm.max_trained_tokens", None, 100, False),
        ("algorithm.epochs", 1, 2, False),
        ("algorithm.progress", "bar", "lines", True),
        ("algorithm.base_url", "http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1", True),
        ("gateway.port", 8000, 8001, True),
        ("gateway.run_budget.calls", 7, 100, True),
        ("gateway.attempt_budget.calls", 7, 100, False),
    ],
)
def test_what_only_ends_a_run_or_finds_servers_may_change(
    name: str, then: Any, now: Any, is_safe: bool
) -> None:
    def config(value: Any) -> Any:
        for part in reversed(name.split(".")):
            value = {part: value}
        return value

    before = agl.Run(run_id="a", algorithm="toy", create_time=0.0, config=config(then))
    safe, unsafe = differences(
        before, agl.RunStart(run_id="a", algorithm="toy", config=config(now)), Steps()
    )
    assert [len(safe), len(unsafe)] == [is_safe, not is_safe]
    shown = what_shapes(agl.RunStart(run_id="a", algorithm="toy", config=config(now)))
    assert (name in shown) == (not is_safe and not name.startswith("algorithm."))
    assert options_that_shape(Steps()) == {"type": "steps", "epochs": 1}


@pytest.mark.parametrize("strategy", ["shm", "cs"])
def test_algorithm_that_raises_at_once_ends_the_run(strategy: str) -> None:
    class AtOnce(agl.Algorithm):
        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            raise RuntimeError("at once")

    store = agl.InMemoryLightningStore()
    trainer = agl.Trainer(algorithm=AtOnce(), store=store, strategy=strategy, port=_port(strategy))
    with pytest.raises(AlgorithmError, match="at once"):
        trainer.fit(agent, [1])
    assert runs_of(store)[0].status == "failed"


def _port(strategy: str) -> int | None:
    return 0 if strategy == "cs" else None


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (json.dumps, "json.dumps"),
        (functools.partial(json.dumps, indent=2), "json.dumps"),
        (json.JSONEncoder, "json.encoder.JSONEncoder"),
        (json.JSONEncoder(), "json.encoder.JSONEncoder"),
    ],
)
def test_functions_and_objects_among_options_are_recorded_by_name(given: Any, name: str) -> None:
    class Toy(agl.Algorithm):
        def __init__(self, model: Any) -> None:
            self.model = model

        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None: ...

    assert options_of(Toy(given)) == {"type": "toy", "model": name}
