"""Runs on a cluster whose parts are killed; each in a process of its own."""

import contextlib
import os
import signal

import psutil
import pytest
from tests.seams.scene import wait_until
from tests.stores import ask

from agl_http.server import bind

from .conftest import NODE, start_cluster

RUN = """
config = agl.RolloutConfig(max_attempts=2, retry_condition=["unresponsive"])

@agl.rollout
def agent(task: int) -> float:
    (HERE / f"started-{{task}}").write_text(str(os.getpid()))
    time.sleep({seconds})
    return 1.0

options = {{"type": "ray", "address": "{address}", "resources": {{"cpu": 0.5}}, "runners": 4}}
trainer(algorithm_of(range({tasks})), **options).fit(agent)
"""


def run_of(address, tasks=40, seconds=0.3):
    return RUN.format(address=address, tasks=tasks, seconds=seconds)


def pid_of(scene, task):
    """The process of the runner that does a task."""
    note = scene.folder / f"started-{task}"
    assert wait_until(lambda: note.exists() and note.read_text()), scene.errors.read_text()
    return psutil.Process(int(note.read_text()))


def attempts_in(scene):
    """Of each rollout: its final status, and how its attempts ended."""

    async def find(store):
        return [
            (
                rollout.status,
                [
                    one.error.boundary if one.error else one.status
                    for one in await store.query_attempts(rollout.rollout_id)
                ],
            )
            for rollout in await store.query_rollouts()
        ]

    return ask(scene.folder / "store.db", find)


def runner(cluster, process):
    process.kill()


def actor(cluster, process):
    the_actor = process.parent().parent()
    assert "RunnerActor" in " ".join(the_actor.cmdline())
    the_actor.kill()


def node(cluster, process):
    node_of_it = process.parent().parent().ppid()
    dying = next(
        node
        for node in cluster.list_all_nodes()
        if node_of_it == node.all_processes["raylet"][0].process.pid
    )
    cluster.add_node(**NODE, num_cpus=4)
    cluster.remove_node(dying, allow_graceful=False)


@pytest.mark.parametrize(("kill", "most"), [(runner, 1), (actor, 2), (node, 4)])
def test_what_dies_costs_its_rollouts_in_flight_one_attempt(scene, cluster, kill, most):
    body = run_of(cluster.address, tasks=16)
    run = scene.start(body.replace("time.sleep(0.3)", 'wait_for("go")'))
    process = pid_of(scene, 3)  # each of the four runners has a task
    kill(cluster, process)
    assert wait_until(lambda: not process.is_running())
    (scene.folder / "go").touch()
    assert run.wait(timeout=120) == 0, scene.errors.read_text()
    found = attempts_in(scene)
    assert [status for status, _ in found] == ["succeeded"] * 16
    lost = [ends for _, ends in found if ends != ["succeeded"]]
    assert lost == [["lost", "succeeded"]] * len(lost)
    assert 1 <= len(lost) <= most
    assert wait_until(lambda: scene.left() == [])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 1), (signal.SIGTERM, 143)])
def test_a_signal_ends_everything(scene, cluster, number, code):
    run = scene.start(run_of(cluster.address, tasks=1000))
    runner = pid_of(scene, 2)
    if number == signal.SIGINT:
        os.killpg(run.pid, number)  # what a terminal does
    else:
        run.send_signal(number)
    assert run.wait(timeout=60) in (code, -number, 130), scene.errors.read_text()
    assert wait_until(lambda: not (scene.left() or runner.is_running()))


WAITS = """
@agl.algo
async def algorithm(store):
    rollout = await store.enqueue_rollout(0)
    await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])

options = {{"type": "ray", "address": "{address}", "resources": {{"cpu": 100}}, "runners": 4}}
trainer(algorithm, **options).fit(agent)
"""


def test_run_that_finds_no_place_ends_when_it_is_asked(scene, cluster):
    run = scene.start(WAITS.format(address=cluster.address))
    says = "4 of 4 runners have had no place for 10 s. An actor of 1 takes {'CPU': 100.0}"
    assert wait_until(lambda: says in scene.errors.read_text()), scene.errors.read_text()
    run.terminate()
    assert run.wait(timeout=60) == 143, scene.errors.read_text()
    assert "does not end" not in scene.errors.read_text()
    assert wait_until(lambda: scene.left() == [])


LATE = """
import agl_ray.cluster

def make():
    class Late(agl_ray.cluster.RunnerActor):  # of this function, so that Ray ships it
        def report(self):
            import time
            time.sleep(0 if hasattr(self, "has_slept") else 3)
            self.has_slept = True
            return super().report()

    return Late

agl_ray.cluster.RunnerActor = make()
"""


def test_runner_whose_start_is_not_known_yet_finishes(scene, cluster, monkeypatch):
    """On a busy machine, what its actor reports comes after the run's end."""
    (scene.folder / "sitecustomize.py").write_text(LATE)
    monkeypatch.setenv("PYTHONPATH", str(scene.folder))
    run = scene.start(run_of(cluster.address, tasks=1, seconds=1.0))
    pid_of(scene, 0)
    run.terminate()
    assert run.wait(timeout=60) == 143, scene.errors.read_text()
    assert attempts_in(scene) == [("succeeded", ["succeeded"])]


def test_a_killed_run_takes_its_runners_along(scene, cluster):
    run = scene.start(run_of(cluster.address, tasks=1000))
    runner = pid_of(scene, 2)
    run.kill()
    run.wait()
    assert wait_until(lambda: not (scene.left() or runner.is_running()))


ASKS = """
@agl.rollout
def agent(task: int) -> float:
    (HERE / "has").write_text(str([name for name in os.environ if name.endswith("_TOKEN")]))
    return 1.0

options = {{"type": "ray", {options}}}
trainer(algorithm_of(range(1)), **options).fit(agent)
"""


def test_agents_of_a_ray_of_this_machine_have_no_token(scene, monkeypatch):
    for name in ("AGL_SERVER_TOKEN", "AGL_GATEWAY_TOKEN"):
        monkeypatch.setenv(name, "admin" * 5)
    code, _, errors = scene.run(ASKS.format(options='"address": "local"'))
    assert code == 0, errors
    assert (scene.folder / "has").read_text() == "[]"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ('"address": "127.0.0.1:9"', "the Ray cluster at 127.0.0.1:9: ConnectionRefusedError"),
        ('"address": "local", "resources": {{"gpu": 1.5}}', "Ray starts no actor: ValueError"),
        ('"address": "local", "resources": {{"memory": 1e13}}', "1 of 1 runners have had no place"),
        ('"address": "local", "runtime_env": {{"workingdir": "."}}', "has no 'workingdir'. Known"),
    ],
)
def test_what_ray_cannot_do_is_said(scene, options, words):
    code, _, errors = scene.run(ASKS.format(options=options.format()))
    assert code == 1
    assert words in errors


def test_a_run_that_ends_while_ray_connects_leaves_nothing(scene):
    with contextlib.closing(bind("127.0.0.1", 0)) as silent:  # which takes no connection
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        run = scene.start(run_of(address))
        assert wait_until(lambda: "agl_ray.cluster" in str([p.cmdline() for p in scene.left()]))
        silent.accept()  # by agl; Ray is next
        run.kill()
        run.wait()
        assert wait_until(lambda: scene.left() == [])


GOES_ON = """
@agl.rollout
def agent(task: int) -> float:
    (HERE / f"started-{task}").write_text(str(os.getpid()))
    if task > 5:  # runners go on without the head until their node misses it
        wait_for("go")
    return 1.0

address = (HERE / "address").read_text()
options = {"type": "ray", "address": address, "resources": {"cpu": 0.5}, "runners": 2}
about = {"run_dir": HERE / "run", "run": "mine", "resume": (HERE / "go").exists()}
agl.Trainer(strategy=options, **about).fit(agent, list(range(40)))
"""


@contextlib.contextmanager
def run_on_a_cluster_of_its_own(scene):
    cluster = start_cluster()
    try:
        cluster.add_node(**NODE, num_cpus=4)
        (scene.folder / "address").write_text(cluster.address)
        yield cluster, scene.start(GOES_ON)
    finally:
        cluster.shutdown()


def test_head_that_is_killed_ends_the_run_which_goes_on(scene, monkeypatch):
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "3")
    with run_on_a_cluster_of_its_own(scene) as (cluster, run):
        runner = pid_of(scene, 6)
        cluster.remove_node(cluster.head_node, allow_graceful=False)
        assert run.wait(timeout=120) == 1, scene.errors.read_text()
        said = scene.errors.read_text()
        address = (scene.folder / "address").read_text()
        assert f"no runner is left; what keeps them on Ray at {address} has ended" in said
        # When the other node misses its head, too.
        assert wait_until(lambda: not (scene.left() or runner.is_running()))
    (scene.folder / "go").touch()
    with run_on_a_cluster_of_its_own(scene) as (_, run):
        assert run.wait(timeout=120) == 0, scene.errors.read_text()
    assert "40 succeeded" in scene.errors.read_text()


def test_deadline_holds_for_an_agent_that_hangs(scene, cluster):
    body = run_of(cluster.address, tasks=3, seconds=600.0).replace("runners", "n_runners")
    code, results, errors = scene.run(body.replace("max_attempts=2", "timeout_seconds=1.0"))
    assert code == 0, errors
    assert sorted(results) == [[str(task), "failed", "timeout"] for task in range(3)]
