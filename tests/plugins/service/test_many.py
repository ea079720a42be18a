"""Many clients at one server: nothing is lost, nothing fails, nobody sees another's."""

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from agl_http.tokens import with_token
from agl_service import Client, ServerConnectionError, TrainingError
from agl_service.users import token_of

from .conftest import ROOM_OF, until, write_tasks

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]
AT_ONCE = [("--jobs-at-once", "2")]


@pytest.mark.parametrize("server", AT_ONCE, indirect=True)
def test_two_users_train_at_once_and_both_learn_their_own(server, tmp_path):
    rooms = [*ROOM_OF.values()]
    others = dict(zip(ROOM_OF, [*rooms[1:], rooms[0]], strict=True))  # each sound, another room
    clients, scripts = {}, {}
    for name, room_of in (("ann", ROOM_OF), ("bob", others)):
        folder = tmp_path / name
        folder.mkdir()
        write_tasks(folder, room_of)
        address = server.user(name)
        clients[name] = Client(address)
        scripts[name] = server.script(address, "15", cwd=folder)

    def are_running() -> bool:
        jobs = [job for client in clients.values() for job in client.jobs()]
        return [job["state"] for job in jobs if job["step"] >= 2] == ["running"] * 2

    until(are_running, scripts["ann"])
    (job,), (data,), bob = clients["ann"].jobs(), clients["ann"].data(), clients["bob"]
    for refused in (
        lambda: bob.attach(job["id"]),
        lambda: bob.stop(job["id"]),
        lambda: bob.download_model("stolen", f"{job['id']}/latest"),
        lambda: bob.train(print, data_id=data["id"]),
        lambda: bob.delete_data(data["id"]),
    ):
        with pytest.raises(TrainingError):
            refused()
    said = {name: script.communicate() for name, script in scripts.items()}
    for name, (out, errors) in said.items():
        assert scripts[name].returncode == 0, errors
        result = json.loads(out)
        assert result["test_rewards"][0] < 0.6 < 0.7 < result["test_rewards"][-1], (name, result)
        assert [job["kind"] for job in clients[name].jobs()] == ["train", "evaluate"]
        assert result["evaluated"]["mean_reward"] == result["test_rewards"][-1]
    ids = [{job["id"] for job in client.jobs()} for client in clients.values()]
    assert not ids[0] & ids[1]


class Visitor:
    """A client that uploads, starts, leaves and comes back at random."""

    def __init__(self, server, number: int, statuses: list[int], is_over: Event) -> None:
        self.server, self.name, self.is_over = server, f"user-{number % 20}", is_over
        self.chance, self.statuses = random.Random(number), statuses
        self.asked: set[str] = set()
        self.started: dict[str, str] = {}
        """Jobs that the server has acknowledged -> the state that they must have, "" for any."""

    def come(self) -> Client:
        address = f"http://127.0.0.1:{self.server.port}"
        client = Client(with_token(address, token_of_user[self.name]), max_retries=0)
        client._session.hooks["response"].append(
            lambda answer, *_, **__: self.statuses.append(answer.status_code)
        )
        return client

    def run(self) -> None:
        while not self.is_over.wait(self.chance.random()):
            try:
                self.visit(self.come())
            except ServerConnectionError:  # it was killed
                self.is_over.wait(0.5)

    def visit(self, client: Client) -> None:
        file = self.server.folder / f"tasks-{self.chance.randrange(5)}.jsonl"
        data = client.upload_data(str(file))
        if len(self.started) < 2:
            body = {"id": f"{self.name}-{self.chance.getrandbits(64):x}", "kind": "train"}
            self.asked.add(body["id"])
            for _ in range(self.chance.randint(1, 2)):  # who got no answer asks again
                client._ask("POST", "/jobs", {**body, "data": data})
            self.started[body["id"]] = ""
        job = self.chance.choice([*self.started])
        for _ in range(self.chance.randrange(4)):
            client._ask("GET", f"/jobs/{job}?has_workers=1")
        if self.chance.random() < 0.1:
            client.stop(job)
            self.started[job] = "stopped"
        assert {one["id"] for one in client.jobs()} >= self.started.keys()


token_of_user: dict[str, str] = {}


@pytest.mark.parametrize("server", AT_ONCE, indirect=True)
def test_200_clients_come_and_go_and_nothing_is_lost(server, tmp_path):
    folder, statuses, is_over = server.folder / "agl-server", [], Event()
    for number in range(20):
        name = f"user-{number}"
        token_of_user[name] = token_of(folder, name)
    for number in range(5):
        line = json.dumps({"question": f"{number}?"}) + "\n"
        (server.folder / f"tasks-{number}.jsonl").write_text(line * (number + 1))
    steady = server.script(server.user("steady"), "1")
    until(lambda: Client(server.user("steady")).jobs(), steady)
    visitors = [Visitor(server, number, statuses, is_over) for number in range(200)]
    with ThreadPoolExecutor(len(visitors)) as pool:
        each = [pool.submit(visitor.run) for visitor in visitors]
        time.sleep(20)
        server.process.kill()
        server.process.wait()
        server.start(*AT_ONCE[0])
        time.sleep(20)
        is_over.set()
        for one in each:
            one.result()
    out, errors = steady.communicate()
    assert steady.returncode == 0, errors
    assert json.loads(out)["total_steps"] == 1
    assert len(statuses) > 1000
    assert {status // 100 for status in statuses} == {2}, set(statuses)
    assert sum(len(visitor.started) for visitor in visitors) >= 200
    for name in token_of_user:
        client = Client(with_token(f"http://127.0.0.1:{server.port}", token_of_user[name]))
        states = {job["id"]: job["state"] for job in client.jobs()}
        own = [visitor for visitor in visitors if visitor.name == name]
        wanted = {job: state for one in own for job, state in one.started.items()}
        assert wanted.keys() <= states.keys() <= set().union(*(one.asked for one in own))
        for job, state in wanted.items():
            assert states[job] == "stopped" if state else states[job] != "failed", job
