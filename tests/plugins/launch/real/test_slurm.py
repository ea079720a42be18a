"""The script of ``agl launch --slurm`` in a real Slurm of two machines, which are on this one."""

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.waiting import free_port

from agl_runs.local_runs import runs_here

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

AGENT = """
import time
import agl

@agl.rollout
def agent(task: dict) -> float:
    time.sleep(1)
    return float(task["x"])
"""
FILE = "agent: one_agent:agent\ntrain: tasks.jsonl\nalgorithm: baseline\n"
SLURM_CONF = """
ClusterName=agl
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
# A job that queues again waits for as long as its credential is good, by default two minutes.
AuthInfo=socket={folder}/munge/socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdTimeout=10
KillWait=5
ReturnToService=2
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=2 RealMemory=4000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=2 RealMemory=4000
PartitionName=all Nodes=ALL Default=YES
"""


async def until(condition: Callable[[], object]) -> None:
    """Each look is a command of Slurm, so not as often as the others' tests look."""
    while not condition():  # noqa: ASYNC110 (there is no event for it)
        await asyncio.sleep(1)


class Slurm:
    """A controller and two machines, whose daemons end with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.daemons = folder, list[subprocess.Popen[bytes]]()
        (folder / "munge").mkdir()
        (folder / "munge/key").write_bytes(os.urandom(128))
        (folder / "munge/key").chmod(0o400)
        for name in ("state", "spool-n1", "spool-n2"):
            (folder / name).mkdir()
        names = ("controller", "first", "second")
        ports = {name: free_port() for name in names}
        text = SLURM_CONF.format(folder=folder, host=socket.gethostname(), **ports)
        (folder / "slurm.conf").write_text(text)
        # agl on the PATH, as a user has it who calls sbatch.
        (folder / "agl").write_text(
            f'#!/bin/sh\nexec {sys.executable} -c "from agl.cli import main; main()" "$@"\n'
        )
        (folder / "agl").chmod(0o755)
        path = f"{folder}:{os.environ['PATH']}"
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("SLURM")},
            **{"SLURM_CONF": str(folder / "slurm.conf"), "PATH": path},
        }

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"daemon-{len(self.daemons)}.log").open("wb") as log:
            daemon = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        self.daemons.append(daemon)
        return daemon

    def ask(self, *command: str) -> str:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        return done.stdout

    async def up(self) -> None:
        munge = self.folder / "munge"
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "seed-file": "seed"}
        options = [f"--{option}={munge / name}" for option, name in files.items()]
        self.start("munged", "--foreground", "--force", *options)
        await until((munge / "socket").exists)
        self.start("slurmctld", "-D", "-c", "-i")
        self.machines = [self.start("slurmd", "-D", "-N", name) for name in ("n1", "n2")]
        await until(lambda: self.ask("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "2")

    def stop(self) -> None:
        self.ask("scancel", "--user=root")
        while self.ask("squeue", "-h"):  # what daemons leave behind, nobody ends
            time.sleep(1)
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in self.daemons:
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


@pytest.fixture
def slurm() -> Iterator[Slurm]:
    if os.geteuid() != 0 or any(
        shutil.which(name) is None for name in ("munged", "slurmctld", "slurmd", "sbatch")
    ):
        pytest.skip("needs root, and: apt-get install slurm-wlm munge")
    # Not in pytest's folder: a socket's path may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        started = Slurm(Path(folder))
        yield started
        started.stop()


@pytest.fixture
def submit(slurm: Slurm, agl, here: Path) -> Callable[..., tuple[str, Path, Path]]:
    def write_and_submit(tasks: int, *options: str) -> tuple[str, Path, Path]:
        (here / "one_agent.py").write_text(AGENT)
        (here / "tasks.jsonl").write_text("".join(f'{{"x": {n}}}\n' for n in range(tasks)))
        (here / "agl.yaml").write_text(FILE)
        size = ("--machines", "2", "--cpus", "1", "--memory", "1", "--name", "job")
        result = agl("launch", "--slurm", "agl.yaml", *size, *options, "-o", "run.sh")
        assert result.code == 0, result.err
        number = slurm.ask("sbatch", "--parsable", "run.sh").strip()
        return number, here / f"agl-runs/slurm-{number}", here / f"job-{number}.log"

    return write_and_submit


def is_over(slurm: Slurm, number: str, log: Path) -> Callable[[], bool]:
    def over() -> bool:
        said = slurm.ask("scontrol", "show", "job", number)
        (state,) = re.findall(r"JobState=(\w+)", said)
        assert state not in ("FAILED", "TIMEOUT", "CANCELLED"), log.read_text()
        return state == "COMPLETED"

    return over


async def test_run_that_meets_its_time_limit_queues_again_and_comes_to_the_same_end(slurm, submit):
    await slurm.up()
    tasks = 240  # two machines, two minutes less at least thirty seconds
    number, folder, log = submit(tasks, "--hours", "0.034", "--grace", "30")
    await until(is_over(slurm, number, log))
    (run,) = runs_here(folder)
    said = log.read_text()
    assert run.status == "finished", said
    # The signal stopped the first start in order, and Slurm began the job again.
    assert [one.outcome for one in run.generations] == ["stopped", "finished"], said
    assert "Restarts=1 " in slurm.ask("scontrol", "show", "job", number)
    assert f"Finished {tasks} rollouts: {tasks} succeeded" in said
    assert re.search(r"SERVER_TOKEN=[^$\s]", (folder.parents[1] / "run.sh").read_text()) is None


async def test_run_goes_on_when_a_machine_of_its_job_has_failed(slurm, submit):
    await slurm.up()
    tasks = 150  # more than a minute, in which Slurm misses the machine and takes the job back
    number, folder, log = submit(tasks)
    await until(lambda: log.exists() and f"5/{tasks}" in log.read_text())
    slurm.machines[1].kill()
    await until(lambda: "n2" in slurm.ask("sinfo", "-h", "-t", "down", "-o", "%N"))
    slurm.machines[1] = slurm.start("slurmd", "-D", "-N", "n2")
    await until(is_over(slurm, number, log))
    (run,) = runs_here(folder)
    assert run.status == "finished"
    assert len(run.generations) == 2, log.read_text()
    assert f"Finished {tasks} rollouts: {tasks} succeeded" in log.read_text()


@pytest.mark.parametrize(
    ("words", "becomes"),
    [(("{number}",), "CANCELLED"), (("--signal=KILL", "{number}.0"), "FAILED")],
    ids=["cancelled", "no runner is left"],
)
async def test_job_that_cannot_go_on_does_not_queue_again(slurm, submit, words, becomes):
    await slurm.up()
    number, folder, log = submit(100)
    await until(lambda: log.exists() and "5/100" in log.read_text())
    slurm.ask("scancel", *(word.format(number=number) for word in words))
    await until(lambda: f"JobState={becomes} " in slurm.ask("scontrol", "show", "job", number))
    assert "Restarts=0 " in slurm.ask("scontrol", "show", "job", number)
    assert "agl run ended with exit code" in log.read_text()
    (run,) = runs_here(folder)
    assert len(run.generations) == 1
