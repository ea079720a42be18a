"""An algorithm and its runners in environments whose packages contradict each other."""

import json
import os
import signal
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import psutil
import pytest
from tests.interpreter import AGL, python
from tests.seams.scene import wait_until

pytest.importorskip("agl_server")

ALGORITHM = """
import json, os, signal
from pathlib import Path
import agl, pinned

class LateSignal:  # the runners ended as Python ends
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGUSR1):
        kill(pid, number)

late = LateSignal()

class Learns(agl.Algorithm):
    def __init__(self, hangs: bool = False, fails: bool = False, since: object = None):
        self.hangs, self.fails = hangs, fails

    async def run(self, train_dataset=None, val_dataset=None):
        if self.fails:
            raise RuntimeError("no luck")
        store = self.get_store()
        each = [await store.enqueue_rollout(task) for task in train_dataset]
        ids = [one.rollout_id for one in each]
        Path("began").write_text(str(os.getpid()))
        done = await store.wait_for_rollouts(rollout_ids=ids, timeout=None if self.hangs else 60)
        rewards = [agl.find_final_reward((await store.query_spans(one)).items) for one in ids]
        Path("learned").write_text(json.dumps([pinned.VERSION, rewards]))
"""
AGENT = """
import time
import agl, pinned

@agl.rollout
def agent(task) -> float:
    time.sleep(task["seconds"])
    return float(pinned.VERSION)
"""


def environment(folder: Path, version: int, **modules: str) -> None:
    """A virtual environment with the packages of this one, and others of its own."""
    venv.create(folder, with_pip=False)
    (place,) = folder.glob("lib/python*/site-packages")
    ours = sysconfig.get_path("purelib")
    (place / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    for name, text in {"pinned": f"VERSION = {version}", **modules}.items():
        (place / f"{name}.py").write_text(text)


@pytest.fixture
def scene(tmp_path):
    environment(tmp_path / "learns-env", 1, learns=ALGORITHM)
    environment(tmp_path / "agents-env", 2, agents=AGENT)
    (tmp_path / "tasks.jsonl").write_text('{"seconds": 0}\n' * 2)
    (tmp_path / "agl.yaml").write_text(
        "agent: agents:agent\n"
        "train: tasks.jsonl\n"
        "algorithm: {type: 'learns:Learns', environment: ./learns-env}\n"
        "runner: {environment: agents-env}\n"
        "runners: 2\n"
    )
    return tmp_path


def agl(folder, *words):
    return python(*AGL, *words, cwd=folder)


def test_each_side_has_its_own_packages(scene):
    done = agl(scene, "run", "agl.yaml", "algorithm.since=2026-11-30")
    assert done.returncode == 0, done.stderr
    assert json.loads((scene / "learned").read_text()) == [1, [2.0, 2.0]]
    assert "there is no module 'agents'. The algorithm goes without" in done.stderr
    assert "2 succeeded" in done.stdout, done.stdout
    assert "nothing answers" not in done.stderr


@pytest.mark.sqlite
@pytest.mark.nightly
def test_both_sides_go_on(scene):
    for words in (
        ["agl.yaml", "algorithm.fails=true"],
        ["--resume", "--force", "algorithm.fails=false"],
    ):
        done = agl(scene, "run", *words)
    assert done.returncode == 0, done.stderr
    assert json.loads((scene / "learned").read_text()) == [1, [2.0, 2.0]]


@pytest.mark.parametrize(
    ("wrong", "code", "said", "side", "folder"),
    [
        ("algorithm.fails=true", 1, "no luck (--debug shows the trace", "algorithm", "learns-env"),
        ("agent=agents:other", 2, "'agents' has no 'other'", "runner", "agents-env"),
    ],
)
def test_what_fails_on_one_side_ends_the_other(scene, wrong, code, said, side, folder):
    done = agl(scene, "run", "agl.yaml", wrong)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    place = f"that was the {side}'s side, in the environment of {scene / folder}"
    assert place in done.stderr.replace("\n", " "), done.stderr


def test_runners_that_end_in_order_end_a_wait_for_more(scene):
    (scene / "tasks.jsonl").write_text('{"seconds": 0}\n' * 6)
    done = agl(scene, "run", "agl.yaml", "max_rollouts=1", "algorithm.hangs=true")
    assert done.returncode == 0, done.stderr  # as without environments
    assert "If max_rollouts ended them, raise it" in done.stderr
    assert "4 queuing, 2 succeeded" in done.stdout, done.stdout
    done = agl(scene, "run", "agl.yaml", "max_rollouts=3")
    assert done.returncode == 0, done.stderr


def test_an_algorithm_that_its_owner_started_leaves_sigusr1_to_its_owner(scene):
    """Slurm sends it before a time limit."""
    (scene / "script.py").write_text(
        "import signal, agl\n"
        "def owns(*_): ...\n"
        "signal.signal(signal.SIGUSR1, owns)\n"
        "@agl.algo\n"
        "async def algorithm(store):\n"
        "    print(signal.getsignal(signal.SIGUSR1) is owns)\n"
        "strategy = {'type': 'cs', 'role': 'algorithm', 'server_port': 0}\n"
        "agl.Trainer(algorithm=algorithm, strategy=strategy).fit(agl.rollout(lambda task: 1.0))\n"
    )
    done = python("script.py", cwd=scene)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_both_end_with_the_command(scene, number):
    (scene / "tasks.jsonl").write_text('{"seconds": 300}\n')
    command = [sys.executable, *AGL, "run", "agl.yaml", "algorithm.hangs=true"]
    process = subprocess.Popen(command, cwd=scene, stderr=subprocess.DEVNULL)
    wait_until(lambda: (scene / "began").exists() or process.poll() is not None)
    command = psutil.Process(process.pid)
    wait_until(lambda: len(command.children(recursive=True)) >= 4)  # sides, supervisor, runners
    parts = command.children(recursive=True)
    os.kill(process.pid, number)
    assert process.wait() != 0
    wait_until(lambda: not any(one.is_running() and one.status() != "zombie" for one in parts))


def test_what_cannot_run_apart_is_refused(scene, tmp_path):
    venv.create(tmp_path / "bare", with_pip=False)
    for words, said in {
        ("run", "agl.yaml", "algorithm.environment=nowhere"): "'nowhere' is no virtual environment",
        ("run", "agl.yaml", "algorithm.environment=bare"): "No module named 'agl",
        ("run", "agl.yaml", "strategy=shm"): "needs strategy cs",
        ("config", "agl.yaml"): "environment of its own, which only agl run starts",
    }.items():
        done = agl(scene, *words)
        assert done.returncode == 2, done.stderr
        assert said in done.stderr
