"""Several servers in one folder, with the stores of their jobs in one PostgreSQL."""

import json
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from tests.interpreter import AGL, python

from agl_http.tokens import with_token
from agl_service import Client, TrainingError
from agl_service.jobs import Job, Jobs
from agl_service.users import token_of

from .conftest import Server, until
from .test_jobs import wait_until

pytest.importorskip("agl_postgres")
NOWHERE = "postgresql://127.0.0.1:1/agl"


class Children:
    """Processes of jobs that end at once, in the place of ``subprocess.Popen``."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def __call__(self, words: Any, cwd: Path, **_: Any) -> "Children":
        time.sleep(0.01)
        self.begun.append(cwd.name)
        return self

    returncode = 0

    def poll(self) -> int:
        return 0

    def terminate(self) -> None: ...

    def wait(self, seconds: float) -> None: ...


def test_each_job_is_run_by_one_server_and_all_see_its_end(tmp_path, monkeypatch):
    children, stop = Children(), Event()
    monkeypatch.setattr("agl_service.jobs.subprocess.Popen", children)
    first, second = (Jobs(tmp_path, 2, address=name) for name in ("http://a", "http://b"))
    for number in range(20):
        about = str(number), f"user-{number % 3}", "train", 1, time.time(), "", ""
        (first, second)[number % 2].add(Job(*about), {})
    with ThreadPoolExecutor() as pool:
        turns = [pool.submit(jobs.run_all, stop) for jobs in (first, second)]
        seen = [
            job for jobs in (first, second) for user in range(3) for job in jobs.all(f"user-{user}")
        ]
        assert len(seen) == 40
        wait_until(lambda: {first.get(job.user, job.id).state for job in seen} == {"finished"})
        stop.set()
        for turn in turns:
            turn.result()
    assert sorted(children.begun, key=int) == [str(number) for number in range(20)]
    assert {second.get(job.user, job.id).server for job in seen} == {"http://a", "http://b"}


@pytest.fixture
def servers(model, tmp_path) -> Generator[list[Server]]:
    """Two of one folder, which a test starts."""
    made = [Server(tmp_path, model, name) for name in ("a", "b")]
    yield made
    for one in made:
        if one.process.poll() is None:
            one.process.terminate()
            assert one.process.wait() == 0


def test_servers_of_one_folder_have_one_database_and_each_an_address(servers, tmp_path):
    first, second = servers
    first.start("--store", NOWHERE)
    shares, taken = ("--store", NOWHERE), f"http://127.0.0.1:{first.port}"
    for said, words in {
        "a server runs in": (),
        "an --address of its own": (*shares, "--address", taken),
        "Say --address": (*shares, "--host", "0.0.0.0"),
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
def database(tmp_path) -> Generator[str]:
    from agl_postgres.embedded import EmbeddedServer

    made = EmbeddedServer(tmp_path / "postgres")
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
        assert len(found) >= 15 * 8 * 8  # and those of evaluations
        other = clients["bob" if name == "ann" else "ann"]
        with pytest.raises(TrainingError, match="no job"):
            next(other.trajectories(job))
    assert not list((tmp_path / "agl-server").glob("*/jobs/*/run/store.db"))
