"""Several servers in one folder, with the stores of their jobs in one PostgreSQL."""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from tests.interpreter import AGL, python

from agl import InMemoryLightningStore
from agl_http.tokens import with_token
from agl_service import Client, TrainingError
from agl_service.jobs import Job, Jobs
from agl_service.users import token_of

from .conftest import Server, until
from .test_jobs import running, wait_until

pytest.importorskip("agl_postgres")
NOWHERE = "postgresql://127.0.0.1:1/agl"


class Child:
    """The process of a job, which ends when it is told to."""

    def __init__(self, job: str) -> None:
        self.job, self.returncode, self._ended = job, 0, Event()

    def poll(self) -> int | None:
        return self.returncode if self._ended.is_set() else None

    def terminate(self) -> None:
        self._ended.set()

    def wait(self, seconds: float | None = None) -> None:
        self._ended.wait(seconds)


@pytest.fixture
def children(monkeypatch) -> list[Child]:
    """Those that were begun, in the place of ``subprocess.Popen``."""
    begun: list[Child] = []

    def popen(words: Any, cwd: Path, **_: Any) -> Child:
        begun.append(Child(cwd.name))
        return begun[-1]

    monkeypatch.setattr("agl_service.jobs.subprocess.Popen", popen)
    for name, seconds in {"POLL": 0.01, "IDLE": 0.01, "END": 0.05}.items():
        monkeypatch.setattr(f"agl_service.jobs.{name}_SECONDS", seconds)
    return begun


def add(jobs: Jobs, name: object, user: str = "ann") -> Job:
    return jobs.add(Job(str(name), user, "train", 1, time.time(), "", ""), {})


def begun(children: list[Child], number: int) -> Child:
    wait_until(lambda: len(children) == number)
    return children[-1]


def test_each_job_is_run_by_one_server_and_all_see_its_end(tmp_path, children):
    first, second = (Jobs(tmp_path, 2, address=name) for name in ("http://a", "http://b"))
    jobs = [add((first, second)[number % 2], number, f"user-{number % 3}") for number in range(20)]
    assert sum(len(one.all(f"user-{n}")) for one in (first, second) for n in range(3)) == 40

    def are_over() -> bool:
        for child in children:
            child.terminate()
        return {first.get(job.user, job.id).state for job in jobs} == {"finished"}

    with running(first, second):
        wait_until(are_over)
    assert sorted(int(child.job) for child in children) == [*range(20)]
    assert {second.get(job.user, job.id).server for job in jobs} == {"http://a", "http://b"}


def test_who_has_lost_a_job_changes_nothing_of_it(tmp_path, children):
    first, second = (Jobs(tmp_path, address=name) for name in ("http://a", "http://b"))
    job = add(first, "j")
    with running(first):
        lost = begun(children, 1)
        (first.folder_of(job) / "claim.lock").unlink()  # as if a file system had given it away
        with running(second):
            owned = begun(children, 2)
            wait_until(lambda: lost.poll() is not None)
            lost.returncode = 1  # the store refuses it
            now = second.get("ann", "j")
            assert (now.state, now.server, now.starts) == ("running", "http://b", 2)
            owned.terminate()
            wait_until(lambda: first.get("ann", "j").state == "finished")
    assert len(children) == 2


def test_a_job_whose_client_has_gone_makes_room_until_it_is_back(tmp_path, children, monkeypatch):
    monkeypatch.setattr("agl_service.jobs.PAUSE_SECONDS", 0.5)
    jobs = Jobs(tmp_path)
    left, other = add(jobs, "left"), add(jobs, "other")
    with running(jobs):
        assert begun(children, 1).job == "left"
        wait_until(lambda: jobs.note_seen(jobs.get("ann", "other")) or len(children) == 2)
        now = jobs.get("ann", "left")
        assert (now.state, now.error.partition(";")[0]) == ("paused", "its client is away")
        jobs.note_seen(now)
        assert jobs.get("ann", "left").state == "queued"
        children[-1].terminate()
        begun(children, 3).terminate()
        wait_until(lambda: {one.state for one in jobs.all("ann")} == {"finished"})
    assert [child.job for child in children] == [left.id, other.id, left.id]


def test_jobs_that_were_left_long_ago_hold_up_none(tmp_path, children):
    jobs = Jobs(tmp_path)
    for number in range(20):
        left = add(jobs, number)
        os.utime(jobs.folder_of(left) / "seen", (1, 1))
    add(jobs, "other")
    jobs._begun = 0
    with running(jobs):
        assert begun(children, 1).job == "other"
        children[0].terminate()
        wait_until(lambda: jobs.get("ann", "other").state == "finished")
    assert {jobs.get("ann", str(number)).state for number in range(20)} == {"paused"}


def test_what_cannot_be_read_or_was_deleted_keeps_no_other_job_from_running(tmp_path, children):
    jobs = Jobs(tmp_path)
    (tmp_path / "ann/jobs/unread/job.json").mkdir(parents=True)
    with running(jobs):
        gone = add(jobs, "gone")
        begun(children, 1)
        shutil.rmtree(jobs.folder_of(gone))
        add(jobs, "other")
        begun(children, 2).terminate()
        wait_until(lambda: jobs.get("ann", "other").state == "finished")


@pytest.fixture
def servers(model, tmp_path) -> Generator[list[Server]]:
    """Two of one folder, which a test starts."""
    made = [Server(tmp_path, model, name) for name in ("a", "b")]
    yield made
    for one in made:
        if one.process and one.process.poll() is None:
            one.process.terminate()
            assert one.process.wait() == 0


def test_jobs_wait_for_a_database_that_is_away(tmp_path, children, monkeypatch):
    jobs = Jobs(tmp_path, store=NOWHERE)
    job = add(jobs, "j")
    assert job.store == f"{NOWHERE}?options=-csearch_path%3D{job.store.rpartition('D')[2]}"
    with running(jobs):
        for number in (1, 2):
            child = begun(children, number)
            child.returncode = 2
            child.terminate()
            wait_until(lambda: "127.0.0.1:1" in jobs.get("ann", "j").error)
        built = SimpleNamespace(build=InMemoryLightningStore)
        monkeypatch.setattr("agl_service.jobs.plan_part", lambda *_: built)
        begun(children, 3).returncode = 2
        children[-1].terminate()
        wait_until(lambda: jobs.get("ann", "j").state == "failed")


def test_servers_of_one_folder_have_one_database_and_each_an_address(servers, tmp_path):
    first, second = servers
    first.start("--store", NOWHERE)
    shares, taken = ("--store", NOWHERE), f"http://127.0.0.1:{first.port}"
    for said, words in {
        "a server runs in": (),
        "an --address of its own": (*shares, "--address", taken),
        "say --address": (*shares, "--host", "0.0.0.0"),
        "service.store: expected postgresql://": ("--store", "sqlite.db"),
        "service.address: expected http://": (*shares, "--address", "gpu-1:8000"),
    }.items():
        start = "server", "start", "--model", str(first.model), "--port", "0"
        ended = python(*AGL, *start, *words, cwd=tmp_path)
        assert (ended.returncode, said in ended.stderr) == (2, True), ended.stderr
    second.start(*shares)
    listed = python(*AGL, "server", "status", cwd=tmp_path).stdout
    assert all(f"127.0.0.1:{one.port} " in listed for one in servers)
    first.end()
    assert second.process.wait() == 0


@pytest.fixture
def database() -> Generator[str]:
    from agl_postgres.embedded import EmbeddedServer

    # Not in pytest's folder, which each pytest that starts closes to other users.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        made = EmbeddedServer(Path(folder, "postgres"))
        yield made.url
        made.stop()


def where(server: Server, user: str, job: str) -> dict[str, str]:
    record = server.folder / "agl-server" / user / "jobs" / job / "job.json"
    return json.loads(record.read_text())


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_what_a_killed_server_ran_goes_on_at_another(database, servers, tmp_path):
    gone, stays = servers
    for one in servers:
        one.start("--store", database)
    address = {one.name: f"http://127.0.0.1:{one.port}" for one in servers}
    scripts, clients = {}, {}
    for name in ("ann", "bob"):
        url = with_token(address["b"], token_of(tmp_path / "agl-server", name))
        clients[name] = Client(url)
        scripts[name] = stays.script(url, "15")
        until(clients[name].jobs, scripts[name])
    jobs = {name: client.jobs()[0]["id"] for name, client in clients.items()}

    def are_under_way() -> bool:
        return all(client.jobs()[0]["step"] >= 3 for client in clients.values())

    until(are_under_way, scripts["ann"])
    at = {where(stays, name, job)["server"]: name for name, job in jobs.items()}
    assert at.keys() == set(address.values())
    gone.process.kill()
    gone.process.wait()
    for name, script in scripts.items():
        said, errors = script.communicate()
        assert script.returncode == 0, errors
        result = json.loads(said)
        assert result["total_steps"] == 15 == len(result["train_rewards"])
        assert result["test_rewards"][0] < 0.6 < 0.7 < result["test_rewards"][-1], (name, result)
        assert result["evaluated"]["mean_reward"] == result["test_rewards"][-1]
    assert where(stays, at[address["a"]], jobs[at[address["a"]]])["server"] == address["b"]
    for name, job in jobs.items():
        found = list(clients[name].trajectories(job))
        clients[name].download_run(job, str(tmp_path / name))
        ledger = python(*AGL, "ledger", tmp_path / name, "--json", cwd=tmp_path)
        assert ledger.returncode == 0, ledger.stderr
        assert len(found) == 15 * 8 * 8
        other = clients["bob" if name == "ann" else "ann"]
        with pytest.raises(TrainingError, match="no job"):
            next(other.trajectories(job))
    assert not list((tmp_path / "agl-server").glob("*/jobs/*/run/store.db"))
