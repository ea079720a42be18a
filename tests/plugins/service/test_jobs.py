"""The server in this process, with jobs that nobody runs: records, requests, data, users."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from agl_http.server import ServerThread
from agl_http.tokens import with_token
from agl_learning.reports.run_metrics import RunMetrics
from agl_service import Client, TrainingError
from agl_service.jobs import Jobs
from agl_service.server import app_of, token_of

ALGORITHM = {"type": "grpo", "model": "none"}


class Queue:
    """A server whose jobs stay queued."""

    def __init__(self, folder) -> None:
        self.folder = folder / "server"
        self.lines = folder / "train.jsonl"
        self.lines.write_text('{"question": "1?"}\n{"question": "2?"}\n')
        self.start()

    def start(self) -> None:
        self.jobs = Jobs(self.folder, "127.0.0.1")
        self.thread = ServerThread(app_of(self.jobs, dict(ALGORITHM)))
        self.thread.start()

    def client(self, name: str) -> Client:
        return Client(with_token(self.thread.url, token_of(self.folder, name)), max_retries=0)

    def begin(self, client: Client) -> str:
        """A job of a client that leaves at once."""
        return client._begin("train", client.upload_data(str(self.lines)), epochs=1)


@pytest.fixture
def queue(tmp_path):
    made = Queue(tmp_path)
    yield made
    made.thread.stop()


def test_a_damaged_record_stops_no_server_and_its_job_says_so(queue, caplog):
    ann = queue.client("ann")
    damaged, whole = queue.begin(ann), queue.begin(ann)
    record = queue.folder / "ann/jobs" / damaged / "job.json"
    record.write_text('{"id": "x", "stat')
    queue.thread.stop()
    queue.start()
    assert f"job {damaged} of ann: {record} is damaged" in caplog.text
    states = {job["id"]: job["state"] for job in queue.client("ann").jobs()}
    assert states == {damaged: "failed", whole: "queued"}
    with pytest.raises(TrainingError, match=r"job\.json is damaged; restore that file"):
        queue.client("ann").attach(damaged)
    assert record.read_text() == '{"id": "x", "stat'


def test_equal_requests_at_once_make_one_job(queue):
    ann, clients, tokens = queue.client("ann"), 8, set()
    data = ann.upload_data(str(queue.lines))
    for number in range(5):
        body = {"id": f"same-{number}", "kind": "train", "data": data}
        start = threading.Barrier(clients)

        def begin(client, body=body, start=start):
            start.wait()
            return client._ask("POST", "/jobs", body)["store"]["token"]

        with ThreadPoolExecutor(clients) as pool:
            each = [queue.client("ann") for _ in range(clients)]
            tokens |= set(pool.map(begin, each))
    assert len(tokens) == 5 == len(ann.jobs())


def test_metrics_are_read_again_only_when_they_have_changed(queue, monkeypatch):
    ann, reads = queue.client("ann"), []
    read = RunMetrics.read
    monkeypatch.setattr(RunMetrics, "read", lambda folder: reads.append(folder) or read(folder))
    runs = [queue.folder / "ann/jobs" / queue.begin(ann) / "run" for _ in range(3)]
    for run in runs:
        run.mkdir()
        (run / "metrics.jsonl").write_text(json.dumps({"step": 1, "reward/mean": 0.5}) + "\n")
    ann.jobs()
    reads.clear()
    with (runs[1] / "metrics.jsonl").open("a") as more:
        more.write(json.dumps({"step": 2, "reward/mean": 0.75}) + "\n")
    for _ in range(3):
        steps = [job["step"] for job in ann.jobs()]
    assert (steps, reads) == ([1, 2, 1], [runs[1]])
