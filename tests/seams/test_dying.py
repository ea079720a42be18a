"""Processes of a run that die, freeze or stay behind, with real ones that are really killed."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import psutil
import pytest

import agl
from agl.errors import AlgorithmError, RunnerCrashError, StoreDiskError, StoreUnavailableError
from agl.execution import deadlock
from agl.execution.client_server.reports import Reports
from agl.execution.client_server.supervisor import RunnerDied
from agl.execution.events import ThreadingEvent
from agl.store.give_back import give_back
from agl.utils.workers import worker_name

HEAD = """
import asyncio, os, signal, subprocess, sys, time
from pathlib import Path
import agl

HERE = Path(__file__).parent
config = agl.RolloutConfig()

class DiesAtStart(agl.OtelTracer):
    # A tracer that ends the process of each runner with one of these numbers.
    def __init__(self, numbers=(0, 1)):
        super().__init__()
        self.numbers = numbers

    def init_worker(self, worker_id, store=None):
        if worker_id in self.numbers:
            os._exit(0)
        super().init_worker(worker_id, store)

def trainer(algorithm, store=None, max_rollouts=None, tracer=None, **options):
    options = {"type": "cs", "server_port": 0, "graceful_timeout": 2.0, **options}
    store = store or agl.SqliteLightningStore(HERE / "store.db")
    return agl.Trainer(algorithm=algorithm, strategy=options, store=store, tracer=tracer,
                       max_rollouts=max_rollouts)

def algorithm_of(tasks):
    @agl.algo
    async def algorithm(store):
        rollouts = [await store.enqueue_rollout(task, config=config) for task in tasks]
        await store.wait_for_rollouts(rollout_ids=[r.rollout_id for r in rollouts])
        for rollout in rollouts:
            ended = await store.get_rollout_by_id(rollout.rollout_id)
            error = ended.attempt.error
            print("RESULT", ended.input, ended.status, error.boundary if error else None,
                  flush=True)
    return algorithm

def wait_for(name):
    while not (HERE / name).exists():
        time.sleep(0.02)
"""


class Scene:
    """A folder with a script, and all processes that descend from it, wherever they went."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex

    def start(self, body: str) -> "subprocess.Popen[bytes]":
        script = self.folder / "script.py"
        script.write_text(HEAD + textwrap.dedent(body))
        with self.errors.open("w") as errors, self.output.open("w") as output:
            return subprocess.Popen(
                [sys.executable, script],
                stdout=output,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, "AGL_TEST_SCENE": self.mark},
            )

    def run(self, body: str) -> "tuple[int, list[list[str]], str]":
        """Exit code, results and standard error; nothing of it may be left."""
        process = self.start(body)
        code = process.wait(timeout=250)
        assert self.left() == []
        lines = self.output.read_text().splitlines()
        results = [line.split()[1:] for line in lines if line.startswith("RESULT")]
        return code, results, self.errors.read_text()

    @property
    def output(self) -> Path:
        return self.folder / "output.txt"

    @property
    def errors(self) -> Path:
        return self.folder / "errors.txt"

    def left(self) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            try:
                is_ours = process.environ().get("AGL_TEST_SCENE") == self.mark
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def open_attempts(self) -> list[str]:
        """Statuses of the attempts in the script's store that have not ended."""

        async def find() -> list[str]:
            store = agl.SqliteLightningStore(self.folder / "store.db")
            try:
                attempts = [
                    attempt
                    for rollout in await store.query_rollouts()
                    for attempt in await store.query_attempts(rollout.rollout_id)
                ]
            finally:
                await store.close()
            return [one.status for one in attempts if one.status in ("preparing", "running")]

        return asyncio.run(find())


@pytest.fixture
def scene(tmp_path: Path) -> Generator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    for process in scene.left():
        process.kill()


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def test_agent_that_exits_with_code_0_is_a_death_like_any_other(scene: Scene) -> None:
    code, results, errors = scene.run(
        """
        @agl.rollout
        def agent(task: int) -> float:
            if task == 0:
                os._exit(0)
            return 1.0

        trainer(algorithm_of(range(3))).fit(agent)
        """
    )
    assert code == 0, errors
    assert results == [["0", "failed", "lost"], *([str(n), "succeeded", "None"] for n in (1, 2))]
    assert "exit code 0" in errors


def test_attempt_of_an_agent_that_exits_with_code_0_runs_again(scene: Scene) -> None:
    code, results, errors = scene.run(
        """
        config = agl.RolloutConfig(max_attempts=2, retry_condition=["unresponsive"])

        @agl.rollout
        def agent(task: int) -> float:
            if not (HERE / "exited").exists():
                (HERE / "exited").touch()
                os._exit(0)
            return 1.0

        trainer(algorithm_of(range(2)), n_runners=2).fit(agent)
        """
    )
    assert code == 0, errors
    assert results == [[str(task), "succeeded", "None"] for task in range(2)]


@pytest.mark.parametrize("healthy", [0, 4])
def test_task_that_ends_its_process_costs_its_own_rollouts_only(scene: Scene, healthy: int) -> None:
    code, results, errors = scene.run(
        f"""
        config = agl.RolloutConfig(max_attempts=2, retry_condition=["unresponsive"])

        @agl.rollout
        def agent(task: int) -> float:
            if task == 0:
                os._exit(139)  # as a crash in a library does
            return 1.0

        trainer(algorithm_of([0] * 8 + [1] * {healthy}), n_runners=2).fit(agent)
        """
    )
    assert code == 0, errors
    assert results == [["0", "failed", "lost"]] * 8 + [["1", "succeeded", "None"]] * healthy
    assert errors.count("is replaced: exit code 139") == 16  # two attempts each, and no more
    assert "is given up" not in errors


@pytest.mark.parametrize(
    ("start", "why"),
    [("os._exit(0)", "exit code 0"), ("raise OSError('no such device')", "OSError: no such")],
    ids=["exits", "raises"],
)
def test_fit_raises_when_no_runner_can_start(scene: Scene, start: str, why: str) -> None:
    code, results, errors = scene.run(
        f"""
        class Tracer(agl.OtelTracer):
            def init_worker(self, worker_id, store=None):
                {start}

        @agl.rollout
        def agent(task: int) -> float:
            return 1.0

        trainer(algorithm_of(range(30)), tracer=Tracer(), n_runners=2).fit(agent)
        """
    )
    assert code == 1
    assert results == []
    assert "RunnerCrashError: no runner is left" in errors
    assert f"it died before its first rollout, again and again: {why}" in errors
    assert errors.count("is replaced") == 4


def test_command_fails_when_no_runner_can_start(scene: Scene) -> None:
    (scene.folder / "agents.py").write_text(
        f"{HEAD}\n\n@agl.rollout\ndef agent(task: int) -> float:\n    return 1.0\n"
    )
    (scene.folder / "tasks.jsonl").write_text("1\n" * 30)
    (scene.folder / "agl.yaml").write_text(
        "agent: agents:agent\n"
        "train: tasks.jsonl\n"
        "algorithm: baseline\n"
        "tracer: agents.DiesAtStart\n"
        "strategy: {type: cs, server_port: 0, graceful_timeout: 2.0}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", "from agl.cli import main; main()", "run", "agl.yaml"],
        cwd=scene.folder,
        env={**os.environ, "AGL_TEST_SCENE": scene.mark},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 1, done.stderr
    assert "no runner is left" in done.stderr
    assert scene.left() == []


def test_frozen_runner_is_replaced(scene: Scene) -> None:
    code, results, errors = scene.run(
        """
        @agl.rollout
        def agent(task: int) -> float:
            if task == 0:
                os.kill(os.getpid(), signal.SIGSTOP)
            return 1.0

        trainer(algorithm_of(range(2))).fit(agent)
        """
    )
    assert code == 0, errors
    assert results == [["0", "failed", "lost"], ["1", "succeeded", "None"]]
    assert "SIGSTOP" in errors


def test_runners_stop_and_go_on_with_the_terminal(scene: Scene) -> None:
    process = scene.start(
        """
        @agl.rollout
        def agent(task: int) -> float:
            (HERE / f"began-{task}").touch()
            wait_for("continued")
            return 1.0

        trainer(algorithm_of(range(2)), n_runners=2).fit(agent)
        """
    )
    assert wait_until(lambda: len(list(scene.folder.glob("began-*"))) == 2)
    (supervisor,) = psutil.Process(process.pid).children()
    runners = supervisor.children()
    supervisor.send_signal(signal.SIGTSTP)  # as Ctrl+Z does
    stopped = [psutil.STATUS_STOPPED] * 2
    assert wait_until(lambda: [runner.status() for runner in runners] == stopped)
    supervisor.send_signal(signal.SIGCONT)
    (scene.folder / "continued").touch()
    assert process.wait(timeout=250) == 0, scene.errors.read_text()
    assert "is replaced" not in scene.errors.read_text()
    assert scene.output.read_text().count("succeeded") == 2


def test_frozen_supervisor_goes_on_and_replaces_runners(scene: Scene) -> None:
    code, results, errors = scene.run(
        """
        @agl.rollout
        def agent(task: int) -> float:
            if task == 0:
                os.kill(os.getppid(), signal.SIGSTOP)
                os.kill(os.getpid(), signal.SIGKILL)
            return 1.0

        trainer(algorithm_of(range(2))).fit(agent)
        """
    )
    assert code == 0, errors
    assert results == [["0", "failed", "lost"], ["1", "succeeded", "None"]]


STOPPED, KILLED = (f"os.kill(os.getpid(), signal.{name})" for name in ("SIGSTOP", "SIGKILL"))


@pytest.mark.parametrize("also", ["pass", STOPPED, KILLED], ids=["only", "stopped", "killed"])
def test_killed_supervisor_ends_the_run_and_every_attempt(scene: Scene, also: str) -> None:
    code, results, errors = scene.run(
        f"""
        @agl.rollout
        def agent(task: int) -> float:
            subprocess.Popen(["sleep", "600"], start_new_session=True)
            (HERE / f"began-{{task}}").touch()
            if task == 0:
                wait_for("began-1")
                os.kill(os.getppid(), signal.SIGKILL)
                {also}
            time.sleep(600)

        trainer(algorithm_of(range(30)), n_runners=2).fit(agent)
        """
    )
    assert code == 1
    assert results == []
    assert "RunnerCrashError: no runner is left" in errors
    assert "the supervisor of the runners died: ended by SIGKILL" in errors
    assert scene.open_attempts() == []


def test_supervisor_that_is_terminated_ends_the_run(scene: Scene) -> None:
    code, results, errors = scene.run(
        """
        @agl.rollout
        async def agent(task: int) -> float:
            if task == 0:
                os.kill(os.getppid(), signal.SIGTERM)
            return 1.0

        trainer(algorithm_of(range(300)), n_runners=2, graceful_timeout=0.5).fit(agent)
        """
    )
    assert code == 1
    assert results == []
    assert "RunnerCrashError: no runner is left; the supervisor of the runners was ended" in errors
    assert scene.open_attempts() == []


def test_supervisor_that_exits_with_code_0_ends_the_run(scene: Scene) -> None:
    code, results, errors = scene.run(
        """
        from agl.execution.client_server import supervisor

        def leave(self, timeout):  # as a library's exit handler or a signal may do
            if (HERE / "began").exists():
                os._exit(0)
            time.sleep(0.02)
            return []

        supervisor._Supervision._wait = leave

        @agl.rollout
        def agent(task: int) -> float:
            (HERE / "began").touch()
            time.sleep(600)

        trainer(algorithm_of(range(3)), n_runners=2, graceful_timeout=0.5).fit(agent)
        """
    )
    assert code == 1
    assert results == []
    assert "RunnerCrashError: no runner is left; the supervisor of the runners died" in errors
    assert scene.open_attempts() == []


@pytest.mark.parametrize(
    "child",
    [
        "os.fork() or time.sleep(600)",
        'subprocess.Popen(["sleep", "600"])',
        'subprocess.Popen(["sleep", "600"], start_new_session=True)',
        'subprocess.run("setsid sleep 600 & setsid sleep 600 &", shell=True)',
    ],
    ids=["fork", "subprocess", "session", "daemons"],
)
@pytest.mark.parametrize("end", ["return 1.0", "os._exit(0)"], ids=["returns", "exits"])
def test_what_an_agent_leaves_behind_ends_with_the_run(scene: Scene, child: str, end: str) -> None:
    code, results, errors = scene.run(
        f"""
        @agl.rollout
        def agent(task: int) -> float:
            {child}
            {end}

        trainer(algorithm_of([0]), max_rollouts=1).fit(agent)
        """
    )
    assert code == 0, errors
    assert [row[1] for row in results] == ["succeeded" if "return" in end else "failed"]


def test_processes_that_no_agent_started_are_left_alone(scene: Scene) -> None:
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        code, _, errors = scene.run(
            """
            mine = subprocess.Popen(["sleep", "600"])

            @agl.rollout
            def agent(task: int) -> float:
                return 1.0

            trainer(algorithm_of([0])).fit(agent)
            assert mine.poll() is None
            mine.kill()
            mine.wait()
            """
        )
        assert code == 0, errors
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_adopted_processes_that_have_ended_do_not_stay_as_zombies(scene: Scene) -> None:
    code, results, errors = scene.run(
        """
        import psutil

        @agl.rollout
        def agent(task: int) -> float:
            subprocess.run("true & true & true &", shell=True)
            others = True
            while others:
                family = psutil.Process(os.getppid()).children()
                others = [one for one in family if one.pid != os.getpid()]
                time.sleep(0.02)
            return 1.0

        config = agl.RolloutConfig(timeout_seconds=30)
        trainer(algorithm_of([0])).fit(agent)
        """
    )
    assert code == 0, errors
    assert results == [["0", "succeeded", "None"]]


def test_runners_and_their_children_end_when_all_above_them_was_killed(scene: Scene) -> None:
    process = scene.start(
        """
        @agl.rollout
        def agent(task: int) -> float:
            subprocess.Popen(["sleep", "600"], start_new_session=True)
            (HERE / f"began-{task}").touch()
            time.sleep(600)

        trainer(algorithm_of(range(2)), n_runners=2).fit(agent)
        """
    )
    assert wait_until(lambda: len(list(scene.folder.glob("began-*"))) == 2)
    assert len(scene.left()) >= 6  # parent, supervisor, two runners, two children
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert wait_until(lambda: scene.left() == [])


def test_store_server_that_dies_ends_the_run(scene: Scene) -> None:
    (scene.folder / "serve.py").write_text(
        textwrap.dedent(
            """
            import asyncio, agl

            async def main():
                server = agl.LightningStoreServer(agl.InMemoryLightningStore(), port=0)
                await server.start()
                print(server.endpoint, flush=True)
                await asyncio.sleep(600)

            asyncio.run(main())
            """
        )
    )
    code, results, errors = scene.run(
        """
        command = [sys.executable, HERE / "serve.py"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        delays = {"retry_delays": (0.1, 0.2), "health_retry_delays": (0.1, 0.2)}
        client = agl.LightningStoreClient(server.stdout.readline().strip(), **delays)

        @agl.rollout
        def agent(task: int) -> float:
            os.kill(server.pid, signal.SIGKILL)
            return 1.0

        try:
            trainer(algorithm_of(range(4)), client, n_runners=2).fit(agent)
        finally:
            server.wait()
        """
    )
    assert code == 1
    assert results == []
    assert "StoreUnavailableError" in errors


# --- runners that end in order while the algorithm works --------------------------------------


CS = "type='cs'"
CS_RUNNER = "type='cs', main_process='runner'"


@pytest.mark.parametrize("strategy", [CS, CS_RUNNER])
def test_algorithm_that_works_goes_on_when_the_last_runner_ends(
    scene: Scene, strategy: str
) -> None:
    code, results, errors = scene.run(
        f"""
        @agl.algo
        async def algorithm(store):
            rollouts = [await store.enqueue_rollout(task) for task in range(3)]
            ended = await store.wait_for_rollouts(rollout_ids=[r.rollout_id for r in rollouts])
            while not store._no_runners.is_set():
                await asyncio.sleep(0.02)
            await asyncio.sleep(1.0)  # a training step: longer than the grace
            print("RESULT", len(ended), flush=True)

        @agl.rollout
        def agent(task: int) -> float:
            return 1.0

        trainer(algorithm, max_rollouts=3, graceful_timeout=0.1, {strategy}).fit(agent)
        """
    )
    assert code == 0, errors
    assert results == [["3"]]


@pytest.mark.parametrize("strategy", [CS, CS_RUNNER])
@pytest.mark.parametrize("timeout", ["None", "0.1"])
def test_algorithm_that_waits_for_what_nobody_will_run_is_stopped(
    scene: Scene, strategy: str, timeout: str
) -> None:
    code, results, errors = scene.run(
        f"""
        @agl.algo
        async def algorithm(store):
            rollouts = [await store.enqueue_rollout(task) for task in range(4)]
            ids, ended = [r.rollout_id for r in rollouts], []
            try:
                while len(ended) < 4:
                    ended = await store.wait_for_rollouts(rollout_ids=ids, timeout={timeout})
            except asyncio.CancelledError:
                print("RESULT stopped", flush=True)
                raise

        @agl.rollout
        def agent(task: int) -> float:
            return 1.0

        trainer(algorithm, max_rollouts=3, graceful_timeout=0.5, {strategy}).fit(agent)
        """
    )
    assert code == 0, errors
    assert results == [["stopped"]]
    assert "All runners have ended" in errors


WORKS = """
        @agl.algo
        async def algorithm(store):
            for task in range(12):
                await store.enqueue_rollout(task)
            while not store._no_runners.is_set():
                await asyncio.sleep(0.02)
            await asyncio.sleep(1.0)  # a training step: longer than the grace
            print("RESULT own end", flush=True)
"""
WAITS = "algorithm = algorithm_of(range(12))"


@pytest.mark.parametrize("algorithm", [WORKS, WAITS], ids=["works", "waits"])
def test_runner_given_up_is_an_error_only_for_an_algorithm_that_waits(
    scene: Scene, algorithm: str
) -> None:
    code, results, errors = scene.run(
        f"""
        {algorithm.strip()}

        @agl.rollout
        def agent(task: int) -> float:
            return 1.0

        options = dict(n_runners=2, max_rollouts=3, graceful_timeout=0.2)
        trainer(algorithm, tracer=DiesAtStart([0]), **options).fit(agent)
        """
    )
    assert "is given up" in errors
    if algorithm == WORKS:
        assert (code, results) == (0, [["own", "end"]]), errors
    else:
        assert (code, results) == (1, [])
        assert "RunnerCrashError: no runner is left; runner 0: it died before" in errors


@pytest.mark.parametrize("how", ["os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_algorithm_in_a_process_of_its_own_that_dies_is_an_error(scene: Scene, how: str) -> None:
    code, _, errors = scene.run(
        f"""
        @agl.algo
        async def algorithm(store):
            {how}

        @agl.rollout
        def agent(task: int) -> float:
            return 1.0

        trainer(algorithm, {CS_RUNNER}).fit(agent)
        """
    )
    assert code == 1
    assert "AlgorithmError: the algorithm failed: e" in errors


def test_runner_in_the_main_process_that_crashes_ends_the_algorithm(scene: Scene) -> None:
    code, _, errors = scene.run(
        f"""
        class Broken(agl.LitAgentRunner):
            async def iter(self, *, event=None):
                raise OSError("no such device")

        @agl.rollout
        def agent(task: int) -> float:
            return 1.0

        agl.Trainer(
            algorithm=algorithm_of([1]),
            strategy=dict(server_port=0, {CS_RUNNER}),
            runner=lambda: Broken(agl.OtelTracer()),
        ).fit(agent)
        """
    )
    assert code == 1
    assert "RunnerCrashError: the runner failed: OSError: no such device" in errors


# --- the same within one process ----------------------------------------------------------------


@agl.rollout
def one(task: int) -> float:
    return 1.0


def fit_in_threads(algorithm: object, main_thread: str, graceful_delay: float = 0.2) -> None:
    strategy = {"type": "shm", "main_thread": main_thread, "graceful_delay": graceful_delay}
    agl.Trainer(algorithm=algorithm, strategy=strategy, max_rollouts=3).fit(one)  # type: ignore[arg-type]


@pytest.mark.parametrize("main_thread", ["algorithm", "runner"])
def test_algorithm_that_works_goes_on_in_threads(main_thread: str) -> None:
    reached: list[int] = []

    @agl.algo
    async def algorithm(store: Any) -> None:
        rollouts = [await store.enqueue_rollout(task) for task in range(4)]
        ids = [rollout.rollout_id for rollout in rollouts]
        await store.wait_for_rollouts(rollout_ids=ids[:3])
        # It looks once, and then works on with what there is.
        reached.append(len(await store.wait_for_rollouts(rollout_ids=ids, timeout=0)))
        while not store._no_runners.is_set():  # noqa: ASYNC110 (another thread sets it)
            await asyncio.sleep(0.02)
        await asyncio.sleep(1.0)  # longer than the grace
        reached.append(len(await store.query_rollouts()))

    fit_in_threads(algorithm, main_thread)
    assert reached == [3, 4]


@pytest.mark.parametrize("strategy", ["shm", "cs"])
def test_algorithm_that_ends_as_if_cancelled_has_failed(strategy: str) -> None:
    @agl.algo
    async def algorithm(store: agl.LightningStore) -> None:
        raise asyncio.CancelledError

    port = {"server_port": 0} if strategy == "cs" else {}
    trainer = agl.Trainer(algorithm=algorithm, strategy={"type": strategy, **port})
    with pytest.raises(AlgorithmError, match="nobody cancelled it"):
        trainer.fit(one)


@pytest.mark.parametrize("main_thread", ["algorithm", "runner"])
def test_runner_in_threads_that_ends_as_if_cancelled_is_a_crash(main_thread: str) -> None:
    class Cancelling:
        async def on_rollout_end(self, **context: object) -> None:
            raise asyncio.CancelledError

    @agl.algo
    async def algorithm(store: agl.LightningStore) -> None:
        rollout = await store.enqueue_rollout(1)
        await store.enqueue_rollout(2)
        await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
        await asyncio.sleep(25)

    strategy = {"type": "shm", "main_thread": main_thread, "graceful_delay": 0.2}
    trainer = agl.Trainer(algorithm=algorithm, strategy=strategy, hooks=[Cancelling()])
    with pytest.raises(RunnerCrashError, match="nobody cancelled it"):
        trainer.fit(one)


async def wait(store: agl.LightningStore, ids: list[str]) -> None:
    await store.wait_for_rollouts(rollout_ids=ids)


async def wait_again(store: agl.LightningStore, ids: list[str]) -> None:
    ended: list[agl.Rollout] = []
    while len(ended) < len(ids):
        ended = await store.wait_for_rollouts(rollout_ids=ids, timeout=0.1)


@pytest.mark.parametrize("main_thread", ["algorithm", "runner"])
@pytest.mark.parametrize("wait_for_all", [wait, wait_again])
@pytest.mark.parametrize("is_async", [True, False])
def test_algorithm_that_waits_in_vain_is_stopped_in_threads(
    main_thread: str, wait_for_all: Callable[..., object], is_async: bool
) -> None:
    reached: list[str] = []

    async def run(store: agl.LightningStore) -> None:
        rollouts = [await store.enqueue_rollout(task) for task in range(4)]
        reached.append("waits")
        await wait_for_all(store, [rollout.rollout_id for rollout in rollouts])  # type: ignore[misc]
        reached.append("went on")

    @agl.algo
    async def coroutine(store: agl.LightningStore) -> None:
        await run(store)

    @agl.algo
    def function(store: agl.LightningStore) -> None:
        asyncio.run(run(store))

    fit_in_threads(coroutine if is_async else function, main_thread)
    assert reached == ["waits"]


async def look_by_wait(store: agl.LightningStore, ids: list[str]) -> None:
    await store.wait_for_rollouts(rollout_ids=ids, timeout=0)


async def look_at_one(store: agl.LightningStore, ids: list[str]) -> None:
    await store.get_rollout_by_id(ids[-1])


async def look_at_queue(store: agl.LightningStore, ids: list[str]) -> None:
    await store.query_rollouts(status_in=["queuing", "running"])


@pytest.mark.parametrize("main_thread", ["algorithm", "runner"])
@pytest.mark.parametrize("look", [look_by_wait, look_at_one, look_at_queue])
def test_algorithm_that_trains_between_looks_comes_to_its_own_end(
    main_thread: str,
    look: Callable[[agl.LightningStore, list[str]], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(deadlock, "WARN_SECONDS", 1.0)
    came: list[str] = []

    @agl.algo
    async def algorithm(store: agl.LightningStore) -> None:
        ids = [(await store.enqueue_rollout(task)).rollout_id for task in range(4)]
        await wait(store, ids[:3])
        while f"rollouts that nobody will run ({ids[3]})" not in caplog.text:
            await look(store, ids)
            await asyncio.sleep(0.1)  # a training step
        came.append("own end")

    fit_in_threads(algorithm, main_thread, graceful_delay=0.2)
    assert came == ["own end"]


def test_event_is_not_set_for_an_algorithm_that_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        store, stop, gone = agl.InMemoryLightningStore(), ThreadingEvent(), ThreadingEvent()
        rollout = await store.enqueue_rollout(1)
        gone.set()

        async def algorithm(store: agl.LightningStore, event: agl.ExecutionEvent) -> None:
            for _ in range(20):
                await store.get_rollout_by_id(rollout.rollout_id)
                await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=0)
                await asyncio.sleep(0.05)

        assert await deadlock.run_algorithm(algorithm, store, stop, gone, lambda: 0.1)
        assert not stop.is_set()

    monkeypatch.setattr(deadlock, "LOOK_SECONDS", 0.01)
    asyncio.run(run())


@pytest.mark.parametrize("main_thread", ["algorithm", "runner"])
@pytest.mark.parametrize("crashes", [True, False])
def test_algorithm_sees_the_event_within_the_graceful_delay(
    main_thread: str, crashes: bool
) -> None:
    seen: list[bool] = []

    async def algorithm(store: agl.LightningStore, event: agl.ExecutionEvent) -> None:
        rollout = await store.enqueue_rollout(1)
        waiting = None if crashes else asyncio.create_task(wait(store, [rollout.rollout_id]))
        await asyncio.to_thread(event.wait)
        await asyncio.sleep(0.1)  # it saves its work
        seen.append(event.is_set())
        if waiting is not None:
            waiting.cancel()

    async def runner(store: agl.LightningStore, worker_id: int, event: agl.ExecutionEvent) -> None:
        if crashes:
            raise OSError("no such device")

    strategy = agl.SharedMemoryExecutionStrategy(main_thread=main_thread, graceful_delay=30.0)  # type: ignore[arg-type]
    began = time.monotonic()
    with pytest.raises(RunnerCrashError) if crashes else contextlib.nullcontext():
        strategy.execute(algorithm, runner, agl.InMemoryLightningStore())
    assert seen == [True]
    assert time.monotonic() - began < 25.0


def test_baseline_says_what_came_of_the_rollouts_that_were_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="agl")
    strategy = {"type": "shm", "graceful_delay": 0.2}
    agl.Trainer(strategy=strategy, max_rollouts=3).dev(one, range(3))
    assert "Finished 3 rollouts: 3 succeeded, mean reward 1.000" in caplog.text
    caplog.clear()
    agl.Trainer(strategy=strategy, max_rollouts=3).dev(one, range(5))
    assert "Finished 3 rollouts: 3 succeeded, mean reward 1.000" in caplog.text


# --- what is left behind when the store's disk is full ------------------------------------------


class DiskOf(agl.InMemoryLightningStore):
    """A store that cannot write the first ``refusals`` times."""

    def __init__(self, refusals: int, error: type[Exception] = StoreDiskError) -> None:
        super().__init__()
        self.refusals, self.error = refusals, error

    def _refuse(self) -> None:
        if self.refusals > 0:
            self.refusals -= 1
            raise self.error("refused")

    async def update_rollout(self, *given: object, **changes: object) -> agl.Rollout:
        self._refuse()
        return await super().update_rollout(*given, **changes)  # type: ignore[arg-type]

    async def update_attempt(self, *given: object, **changes: object) -> agl.Attempt:
        self._refuse()
        return await super().update_attempt(*given, **changes)  # type: ignore[arg-type]

    async def claimed_by(self, *names: str) -> list[agl.AttemptedRollout]:
        for name in names:
            await self.enqueue_rollout(name)
        return [(await self.dequeue_many_rollouts(limit=1, worker_id=name))[0] for name in names]

    async def statuses(self) -> list[str]:
        return [rollout.status for rollout in await self.query_rollouts()]


async def test_full_disk_keeps_only_the_claim_that_it_refused() -> None:
    store = DiskOf(refusals=1)
    await give_back(store, await store.claimed_by("a", "b", "c"))
    assert sorted(await store.statuses()) == ["preparing", "requeuing", "requeuing"]


async def test_store_that_is_away_is_not_asked_for_each_claim() -> None:
    store = DiskOf(refusals=1, error=StoreUnavailableError)
    with pytest.raises(StoreUnavailableError):
        await give_back(store, await store.claimed_by("a", "b", "c"))
    assert await store.statuses() == ["preparing"] * 3


async def test_what_a_dead_runner_left_is_noted_when_the_disk_has_space_again() -> None:
    store, reports = DiskOf(refusals=2), Reports(None)
    reports.open()
    await store.claimed_by(worker_name(0, pid=1))
    died = RunnerDied(0, 1, 1, "StoreDiskError: full", False)
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    for _ in range(2):
        await reports.handle(died, store)
        assert await store.statuses() == ["preparing"]
        assert await reports.next_or(never) == died
    await reports.handle(died, store)
    assert await store.statuses() == ["failed"]


@pytest.mark.parametrize("handled", [0, 1])
async def test_every_dead_runner_is_noted_at_the_end(handled: int) -> None:
    store, reports = DiskOf(refusals=1), Reports(5.0)
    reports.open()
    await store.claimed_by(*(worker_name(number, pid=1) for number in range(3)))
    dead = [RunnerDied(number, 1, 1, "exit code 1", False) for number in range(3)]
    for died in dead[:handled]:
        await reports.handle(died, store)  # not noted, and once more at the end
    for died in dead[handled:]:
        reports.deliver(died)
    await reports.handle_rest(store)
    refused = ["preparing"] * (1 - handled)
    assert sorted(await store.statuses(), reverse=True) == refused + ["failed"] * (3 - len(refused))


async def test_runner_that_found_no_store_ends_the_run_whatever_its_text() -> None:
    reports = Reports(None)
    away = RunnerDied(0, 1, 69, "the store is gone", False, store_away=True)
    with pytest.raises(RunnerCrashError, match="runner 0: the store is gone"):
        await reports.handle(away, agl.InMemoryLightningStore())
    text = RunnerDied(0, 1, 1, "StoreUnavailableError: says an agent", False)
    await reports.handle(text, agl.InMemoryLightningStore())
