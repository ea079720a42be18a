"""Processes of a run that die, freeze or stay behind, with real ones that are really killed."""

import asyncio
import os
import re
import signal
import subprocess

import psutil
import pytest

import agl
from agl.errors import AlgorithmError, RunnerCrashError, StoreDiskError, StoreUnavailableError
from agl.store.release import release_claim
from agl.utils.life_cycle import worker_name
from agl_processes.reports import Reports
from agl_processes.supervisor import AllEnded, RunnerDied

from .scene import Scene, wait_until


@pytest.mark.parametrize(
    ("healthy", "ends", "why"),
    [
        (0, "os._exit(139)", "exit code 139"),  # as a crash in a library does
        (4, "os.kill(os.getpid(), signal.SIGKILL)", "ended by SIGKILL"),
    ],
)
def test_task_that_ends_its_process_costs_its_own_rollouts_only(scene, healthy, ends, why) -> None:
    code, results, errors = scene.run(
        f"""
        config = agl.RolloutConfig(max_attempts=2, retry_condition=["unresponsive"])

        @agl.rollout
        def agent(task: int) -> float:
            if task == 0:
                {ends}
            return 1.0

        trainer(algorithm_of([0] * 8 + [1] * {healthy}), n_runners=2).fit(agent)
        """
    )
    assert code == 0, errors
    assert results == [["0", "failed", "lost"]] * 8 + [["1", "succeeded", "None"]] * healthy
    assert errors.count(f"is replaced: {why}") == 16  # two attempts each, and no more
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

        trainer(algorithm_of(range(30)), tracer=Tracer(), n_runners=2).fit(agent)
        """
    )
    assert code == 1
    assert results == []
    assert "RunnerCrashError: no runner is left" in errors
    assert f"it died before its first rollout, again and again: {why}" in errors
    assert errors.count("is replaced") == 4


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


@pytest.mark.parametrize(
    "also", ["pass", "os.kill(os.getpid(), signal.SIGSTOP)"], ids=["only", "stopped"]
)
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


TERMINATES = """
        @agl.rollout
        async def agent(task: int) -> float:
            if task == 0:
                os.kill(os.getppid(), signal.SIGTERM)
            return 1.0
"""
LEAVES = """
        from agl_processes import supervisor

        def leave(self, timeout):  # as a library's exit handler or a signal may do
            if (HERE / "began").exists():
                os._exit(0)
            time.sleep(0.02)
            return []

        supervisor.Runners._wait = leave

        @agl.rollout
        def agent(task: int) -> float:
            (HERE / "began").touch()
            time.sleep(600)
"""


@pytest.mark.parametrize(("how", "why"), [(TERMINATES, "was ended"), (LEAVES, "died")])
def test_supervisor_that_is_terminated_or_exits_with_code_0_ends_the_run(scene, how, why) -> None:
    fit = "trainer(algorithm_of(range(300)), n_runners=2, graceful_timeout=0.5).fit(agent)"
    code, results, errors = scene.run(f"{how}\n        {fit}\n")
    assert (code, results) == (1, [])
    assert f"RunnerCrashError: no runner is left; the supervisor of the runners {why}" in errors
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
    code, results, errors = scene.run(
        """
        command = [sys.executable, "-c", "from agl.cli import main; main()", "store", "--open"]
        command += ["--backend", "memory", "--port", "0"]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        address = next(line for line in server.stderr if "agl store:" in line).split()[2]
        client = agl.LightningStoreClient(address, retry_delays=(0.1, 0.2))

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
    assert "StoreAwayError" in errors


@pytest.mark.parametrize("strategy", ["shm", "cs"])
def test_errors_of_one_kind_in_a_group_are_said_by_the_first(strategy: str) -> None:
    async def fail(number: int) -> None:
        raise StoreUnavailableError(f"store at http://127.0.0.1:{number}: no answer")

    @agl.algo
    async def waits(*, store: object) -> None:
        async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
            outer.create_task(asyncio.sleep(60))
            for number in range(1, 9):
                inner.create_task(fail(number))

    said = "failed: StoreUnavailableError: store at http://127.0.0.1:1: no answer (and 7 more)"
    with pytest.raises(AlgorithmError, match=re.escape(said)):
        agl.Trainer(algorithm=waits, strategy=strategy, n_runners=1).fit(nothing)


@agl.rollout
def nothing(task: int) -> float:
    return 1.0


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


async def test_store_that_is_away_says_so_to_who_gives_back() -> None:
    store = DiskOf(refusals=1, error=StoreUnavailableError)
    (claimed,) = await store.claimed_by("a")
    with pytest.raises(StoreUnavailableError):
        await release_claim(store, claimed)
    assert await store.statuses() == ["preparing"]


async def test_what_a_dead_runner_left_is_noted_when_the_disk_has_space_again(
    monkeypatch, caplog
) -> None:
    monkeypatch.setattr("agl_processes.reports.AGAIN_SECONDS", 0.01)
    store, reports = DiskOf(refusals=2), Reports()
    reports.open()
    await store.claimed_by(worker_name(0, pid=1))
    reports.deliver(RunnerDied(0, 1, "StoreDiskError: full", False))
    reports.deliver(AllEnded())
    await reports.follow(store)
    assert await store.statuses() == ["failed"]
    assert reports.no_runners.is_set()
    assert caplog.text.count("has ended: StoreDiskError: full") == 1
    assert caplog.text.count("cannot be noted yet") == 2


@pytest.mark.parametrize("is_followed", [True, False])
async def test_every_dead_runner_is_noted_at_the_end(is_followed: bool) -> None:
    store, reports = DiskOf(refusals=1), Reports()
    reports.open()
    await store.claimed_by(*(worker_name(number, pid=1) for number in range(3)))
    following = asyncio.ensure_future(reports.follow(store))
    for number in range(3):
        reports.deliver(RunnerDied(number, 1, "exit code 1", False))
    if is_followed:
        await asyncio.sleep(0.1)  # the first cannot be noted, and is told again at the end
    following.cancel()
    await asyncio.wait([following])
    await reports.follow_rest(store, 5.0)
    refused = ["preparing"] * (1 - is_followed)
    assert sorted(await store.statuses(), reverse=True) == refused + ["failed"] * (3 - len(refused))


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"given_up": False, "is_replaced": True}, "is replaced"),
        ({"given_up": True}, "is given up"),
        ({"given_up": False}, "has ended"),
    ],
)
async def test_what_is_said_of_a_dead_runner_is_what_follows(about, said, caplog) -> None:
    reports = Reports()
    reports.open()
    reports.deliver(RunnerDied(0, 1, "exit code 9", name="one", **about))
    await reports.follow_rest(agl.InMemoryLightningStore(), 5.0)
    told = [one.message for one in caplog.records if one.name == "agl.server"]
    assert told == [f"Runner 0 (one) {said}: exit code 9"]


def test_runner_that_dies_at_the_end_of_its_run_is_not_said_to_be_replaced(scene: Scene) -> None:
    code, _, errors = scene.run(
        """
        @agl.rollout
        def agent(task: int) -> float:
            (HERE / "began").touch()
            time.sleep(300)
            return 1.0

        @agl.algo
        async def once(*, store):
            await store.enqueue_rollout(0)
            while not (HERE / "began").exists():
                await asyncio.sleep(0.02)

        options = dict(n_runners=1, graceful_timeout=0.2, terminate_timeout=0.2)
        trainer(once, **options).fit(agent)
        """
    )
    assert code == 0, errors
    assert re.search("has ended: (exit code 143|ended by SIGKILL)", errors), errors
    assert "is replaced" not in errors


async def test_runner_that_found_no_store_ends_the_run_whatever_its_text() -> None:
    reports = Reports()
    reports.open()
    reports.deliver(RunnerDied(0, 1, "StoreUnavailableError: says an agent", False))
    reports.deliver(RunnerDied(0, 1, "the store is gone", False, store_away=True))
    with pytest.raises(RunnerCrashError, match="runner 0: the store is gone"):
        await reports.follow(agl.InMemoryLightningStore())
