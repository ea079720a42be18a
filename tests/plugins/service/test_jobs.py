"""The server in this process, with jobs that nobody runs: records, requests, data, users."""

import datetime
import json
import os
import re
import shutil
import sys
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
import yaml
from tests.stores import ask

from agl.cli import cli
from agl.errors import ConfigError
from agl_http.server import ServerThread
from agl_http.tokens import with_token
from agl_learning.reports.run_metrics import RunMetrics
from agl_service import (
    Client,
    DataUploadError,
    EvalResult,
    InvalidConfigError,
    ServerConnectionError,
    TrainingError,
    jobs as jobs_module,
)
from agl_service.data import check_tasks
from agl_service.jobs import Jobs, Quotas
from agl_service.server import app_of
from agl_service.settings import Settings, read_settings
from agl_service.users import read_users, token_of
from agl_testing.traces import Trace

ALGORITHM = {"type": "grpo", "model": "none", "group_size": 8}


class Queue:
    """A server whose jobs stay queued."""

    def __init__(self, folder) -> None:
        self.folder = folder / "server"
        self.lines = folder / "train.jsonl"
        self.lines.write_text('{"question": "1?"}\n{"question": "2?"}\n')
        self.start()

    def start(self, credit=None, **options) -> None:
        given = {"credit": credit} if credit else {}
        settings = Settings({**ALGORITHM, **given}, **options)
        self.jobs = Jobs(self.folder, settings.jobs_at_once, settings.quotas)
        self.thread = ServerThread(app_of(self.jobs, settings))
        self.thread.start()

    def restart(self, **options) -> None:
        self.thread.stop()
        self.start(**options)

    def client(self, name: str) -> Client:
        return Client(with_token(self.thread.url, token_of(self.folder, name)), max_retries=0)

    def now(self, job):
        """The job as it is now."""
        return self.jobs.get(job.user, job.id)

    def begin(self, client: Client) -> str:
        """A job of a client that leaves at once."""
        return client._begin("train", client.upload_data(str(self.lines)), epochs=1)


@contextmanager
def running(*servers: Jobs):
    """The jobs of these servers are run."""
    stop = threading.Event()
    with ThreadPoolExecutor() as pool:
        turns = [pool.submit(jobs.run_all, stop) for jobs in servers]
        try:
            yield
        finally:
            stop.set()
        for turn in turns:
            turn.result()


@pytest.fixture
def queue(tmp_path):
    made = Queue(tmp_path)
    yield made
    made.thread.stop()


@pytest.fixture
def ann(queue):
    client = queue.client("ann")
    client.name = "ann"
    return client


def test_a_damaged_record_stops_no_server_and_its_job_says_so(queue, ann, caplog):
    damaged, whole = queue.begin(ann), queue.begin(ann)
    record = queue.folder / "ann/jobs" / damaged / "job.json"
    record.write_text('{"id": "x", "stat')
    queue.restart()
    states = {job["id"]: job["state"] for job in queue.client("ann").jobs()}
    assert f"job {damaged} of ann: {record} is damaged" in caplog.text
    assert states == {damaged: "damaged", whole: "queued"}
    with pytest.raises(TrainingError, match=r"job\.json is damaged; restore that file"):
        queue.client("ann").attach(damaged)
    assert record.read_text() == '{"id": "x", "stat'


def test_damaged_data_are_shown_and_refused_and_take_no_file_with_them(queue):
    ann, others = queue.client("ann"), queue.lines.with_name("others.jsonl")
    others.write_text('{"question": "3?"}\n')
    ann.upload_data(str(queue.lines), str(others), "damaged")
    ann.upload_data(str(queue.lines), data_id="whole")
    record = queue.folder / "ann/data/damaged.json"
    for text in ('{"train": "', "{}"):
        record.write_text(text)
        errors = {one["id"]: one["error"] for one in ann.data()}
        assert f"{record} is damaged; restore that file" in errors["damaged"]
        assert errors["whole"] == ""
    with pytest.raises(InvalidConfigError, match=r"'damaged': .*json is damaged"):
        ann._begin("train", "damaged")
    ann._begin("train", "whole")
    ann.delete_data("whole")
    assert len(list((queue.folder / "ann/files").iterdir())) == 2
    ann.delete_data("damaged")
    assert ann.data() == []


def test_a_damaged_result_is_that_of_its_job_alone(queue, ann):
    ann.upload_data(str(queue.lines))
    job, other = (queue.jobs.get("ann", ann._begin("evaluate", None)) for _ in range(2))
    (queue.jobs.folder_of(job) / "result.json").write_text('{"tasks": [')
    queue.jobs.change(job, "finished")
    states = {one["id"]: one["state"] for one in ann.jobs()}
    assert states == {job.id: "failed", other.id: "queued"}
    with pytest.raises(TrainingError, match=r"result\.json is damaged; evaluate again"):
        ann.attach(job.id)


def test_damaged_users_are_said_to_be_damaged(queue, caplog, capsys):
    ann, users = queue.client("ann"), queue.folder / "users.json"
    users.write_text('{"')
    with pytest.raises(ServerConnectionError, match=r"500.*see the server's log$"):
        ann.jobs()
    assert f"{users} is damaged, so no token is known; restore it" in caplog.text
    with pytest.raises(ConfigError, match="add the users again"):
        agl("server", "users", "list", "--folder", queue.folder)


def test_what_fails_unforeseen_is_in_the_log(queue, caplog):
    ann, files = queue.client("ann"), queue.folder / "ann/files"
    ann.jobs()
    files.parent.mkdir()
    files.write_text("no folder")
    with pytest.raises(ServerConnectionError, match=r"500 .*see the server's log$"):
        ann.upload_data(str(queue.lines))
    assert "PUT '/files/" in caplog.text
    assert "FileExistsError" in caplog.text


def test_a_job_that_failed_or_was_stopped_is_taken_up_again(queue, ann):
    job = queue.jobs.get("ann", queue.begin(ann))
    for state in ("failed", "stopped"):
        queue.jobs.change(job, state, error="no memory")
        with pytest.raises(TrainingError, match=f"{state}: no memory"):
            ann.attach(job.id)
        with ThreadPoolExecutor(1) as pool:
            attached = pool.submit(ann.attach, job.id, print, nworkers=1)
            wait_until(lambda done=attached.done: queue.now(job).state == "queued" or done())
            queue.jobs.change(job, "failed", error="again")
            with pytest.raises(TrainingError, match="failed: again"):
                attached.result()
    queue.jobs.change(job, "damaged")
    ann._ask("POST", f"/jobs/{job.id}/queue")
    assert queue.now(job).state == "damaged"


def test_what_the_server_has_in_short_form_is_kept(queue, monkeypatch):
    short = {"evaluation": 5, "failures": "keep", "rollouts": None, "credit": None}
    for option, value in short.items():
        monkeypatch.setitem(ALGORITHM, option, value)
    queue.restart()
    ann = queue.client("ann")
    data = ann.upload_data(str(queue.lines), str(queue.lines))
    asked = {"max_retries": 1, "timeout": 9.0, "air": True, "eval_interval": 7}
    body = {"id": "short", "kind": "train", "data": data, **asked}
    ann._ask("POST", "/jobs", body)
    text = (queue.folder / "ann/jobs/short/job.yaml").read_text()
    options = yaml.safe_load(text)["algorithm"]
    assert options["evaluation"] == {"every": 7}
    retried = {"agent": "retry", "timeout": "retry", "retries": 1}
    assert options["failures"] == {"infrastructure": "keep", **retried}
    assert (options["rollouts"], options["credit"]) == ({"timeout_seconds": 9.0}, "discounted")


def test_a_checkpoint_that_its_training_removes_is_evaluated_all_the_same(queue, ann):
    job = queue.begin(ann)
    trained = queue.folder / "ann/jobs" / job / "run/checkpoints/step-000001"
    trained.mkdir(parents=True)
    (trained / "model.safetensors").write_text("weights")
    begin = {"kind": "evaluate", "data": None, "checkpoint": f"{job}/step-000001"}
    evaluation = queue.folder / "ann/jobs" / ann._begin(**begin)
    shutil.rmtree(trained)
    model = Path(yaml.safe_load((evaluation / "job.yaml").read_text())["algorithm"]["model"])
    assert (model / "model.safetensors").read_text() == "weights"
    with pytest.raises(TrainingError, match="no checkpoint"):
        ann._begin(**begin)


def test_jobs_that_begin_in_one_second_are_two(queue, monkeypatch):
    monkeypatch.setattr("agl_service.client.new_run_id", lambda: "now")
    ann = queue.client("ann")
    assert queue.begin(ann) != queue.begin(ann)


def test_users_who_are_added_at_once_are_all_there(queue):
    queue.folder.mkdir(exist_ok=True)
    names = [f"user-{number}" for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        tokens = list(pool.map(lambda name: token_of(queue.folder, name), names))
    assert read_users(queue.folder) == dict(zip(tokens, names, strict=True))


@pytest.mark.parametrize("name", ["lock", "users.json", "server-x.lock", "..", "a/b"])
def test_users_have_names_of_folders_that_are_theirs(queue, name):
    queue.client("ann").upload_data(str(queue.lines))
    with pytest.raises(ConfigError):
        token_of(queue.folder, name)


def test_an_evaluation_of_another_client_has_the_newest_tasks(queue):
    uploaded = queue.client("ann").upload_data(str(queue.lines))
    ann = queue.client("ann")
    with pytest.raises(InvalidConfigError, match=r"expected \(resource, task\)"):
        ann.train(lambda task: 1.0, data_id=uploaded)
    with ThreadPoolExecutor(1) as pool:
        evaluated = pool.submit(ann.evaluate, print, nworkers=1)
        wait_until(lambda: ann.jobs() or evaluated.done())
        job = queue.jobs.get("ann", ann.jobs()[0]["id"])
        config = yaml.safe_load((queue.jobs.folder_of(job) / "job.yaml").read_text())
        assert len(Path(config["train"]).read_text().splitlines()) == 2
        queue.jobs.change(job, "failed")
        with pytest.raises(TrainingError):
            evaluated.result()
    with pytest.raises(TrainingError, match="no checkpoint"):
        ann.evaluate(print, checkpoint=f"{job.id}/none", nworkers=1)
    assert len(list((queue.folder / "ann/jobs").iterdir())) == 1


def test_a_number_beyond_floats_is_refused(ann):
    headers = {"Content-Type": "application/json"}
    for option in ("epochs", "timeout"):
        body = f'{{"id": "j", "kind": "train", "data": "d", "{option}": 1e400}}'
        answer = ann._session.post(f"{ann._url}/jobs", data=body, headers=headers)
        assert answer.status_code == 422
        assert f"body.{option}: Input should be" in answer.json()["detail"]


def test_dates_of_parquet_are_texts_and_what_is_no_json_is_named(queue):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    ann, file = queue.client("ann"), queue.lines.with_suffix(".parquet")
    task = {"question": "when?", "ground_truth": datetime.datetime(2026, 11, 30)}
    parquet.write_table(pyarrow.Table.from_pylist([task]), file)
    ann.upload_data(str(file))
    (sent,) = (queue.folder / "ann/files").iterdir()
    assert json.loads(sent.read_text())["ground_truth"] == "2026-11-30T00:00:00"
    parquet.write_table(pyarrow.Table.from_pylist([{"question": b"\xff"}]), file)
    with pytest.raises(DataUploadError, match=r"parquet: a task is no JSON: .*utf-8"):
        ann.upload_data(str(file))


def test_equal_requests_at_once_make_one_job(queue):
    ann, clients, tokens = queue.client("ann"), 8, set()
    data = ann.upload_data(str(queue.lines))
    for number in range(5):
        body = {"id": f"same-{number}", "kind": "train", "data": data}
        start = threading.Barrier(clients)

        def begin(client, body=body, start=start):
            start.wait()
            return client._ask("POST", "/jobs", body)["token"]

        with ThreadPoolExecutor(clients) as pool:
            each = [queue.client("ann") for _ in range(clients)]
            tokens |= set(pool.map(begin, each))
    assert len(tokens) == 5 == len(ann.jobs())


def test_an_evaluation_is_taken_up_again_and_training_keeps_its_tasks(queue, ann):
    ann.upload_data(str(queue.lines))
    others = queue.lines.with_name("test.jsonl")
    others.write_text('{"question": "3?"}\n')
    found = {"tasks": [{"rewards": [0.5]}], "metrics": {"reward/mean": 0.5}, "failures": {}}
    with ThreadPoolExecutor(1) as pool:
        evaluated = pool.submit(ann.evaluate, print, str(others))
        wait_until(lambda: queue.jobs.all("ann") or evaluated.done())
        (job,) = queue.jobs.all("ann")
        (queue.jobs.folder_of(job) / "result.json").write_text(json.dumps(found))
        queue.jobs.change(job, "finished")
        assert evaluated.result() == EvalResult(0.5, [0.5], {}, "base", job.id)
    assert ann.attach(job.id) == evaluated.result()
    assert queue.jobs.get("ann", ann._begin("train", None, batch_size=1)).steps == 2


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


def test_an_upload_that_broke_off_goes_on_and_content_lies_there_once(queue, monkeypatch):
    ann, sent = queue.client("ann"), []
    line = json.dumps({"question": "?" * 2**20}) + "\n"
    queue.lines.write_text(line * 10)
    digest, tasks = check_tasks(queue.lines, "train.jsonl")
    piece = queue.lines.read_bytes()[: 5 * 2**20]
    assert ann._ask("PUT", f"/files/{digest}?offset=0", piece) == len(piece)
    assert ann._ask("PUT", f"/files/{digest}?offset=0", piece) == len(piece)  # sent once more
    assert ann.data() == []
    ask = Client._ask
    monkeypatch.setattr(
        Client, "_ask", lambda self, *given: sent.append(given) or ask(self, *given)
    )
    assert ann.upload_data(str(queue.lines), data_id="a") == "a"
    sizes = [len(body) for method, _, body in (one for one in sent if one[0] == "PUT")]
    assert (sum(sizes), tasks) == (len(line) * 10 - len(piece), 10)
    sent.clear()
    ann.upload_data(str(queue.lines), str(queue.lines), data_id="b")
    assert not any(one[2] for one in sent if one[0] == "PUT")
    assert len(list((queue.folder / "ann/files").iterdir())) == 1
    assert [(one["id"], one["train_tasks"], one["test_tasks"]) for one in ann.data()] == [
        ("a", 10, 0),
        ("b", 10, 10),
    ]


def test_a_large_file_is_never_in_memory_as_a_whole(queue, ann):
    line = json.dumps({"question": "?" * 2**19}) + "\n"
    with queue.lines.open("w") as out:
        for _ in range(160):
            out.write(line)
    tracemalloc.start()
    ann.upload_data(str(queue.lines))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 * 2**20 < queue.lines.stat().st_size, peak  # of client and server together


def test_deleted_data_goes_with_files_that_no_other_names_and_jobs_keep_theirs(queue):
    ann, files = queue.client("ann"), queue.folder / "ann/files"
    for name in ("a", "b"):
        ann.upload_data(str(queue.lines), data_id=name)
    job, lines = queue.folder / "ann/jobs" / ann._begin("train", "a"), queue.lines.read_text()
    ann.delete_data("a")
    assert len(list(files.iterdir())) == 1
    ann.delete_data("b")
    assert (list(files.iterdir()), ann.data()) == ([], [])
    assert f"train: {job / 'train.jsonl'}" in (job / "job.yaml").read_text()
    assert (job / "train.jsonl").read_text() == lines
    with pytest.raises(TrainingError, match="you have no data 'b'"):
        ann.delete_data("b")


@pytest.mark.parametrize(
    ("content", "said"),
    {
        b'{"question": "x"}\n\n{"q": 1}\n': "train file, line 3: expected JSON with a 'question'",
        b'{"question": "\xff"}\n': "train file, line 1: expected JSON",
        b"\n": "train file: it has no tasks",
        b'{"question": "x", "score": NaN}\n': r"line 1: the task\['score'\] cannot be stored",
        b'{"question": "\\ud800"}\n': r"line 1: the task\['question'\] cannot be stored",
    }.items(),
)
def test_the_server_checks_lines_itself(queue, ann, content, said):
    digest = sha256(content).hexdigest()
    ann._ask("PUT", f"/files/{digest}?offset=0", content)
    with pytest.raises(DataUploadError, match=said):
        ann._ask("POST", "/data", {"train": digest})
    assert list((queue.folder / "ann/files").iterdir()) == []
    with pytest.raises(DataUploadError, match="was not uploaded"):
        ann._ask("POST", "/data", {"train": digest})
    ann._ask("PUT", f"/files/{digest}?offset=0", b'{"question": "other"}\n')
    with pytest.raises(DataUploadError, match="it changed while it was uploaded"):
        ann._ask("POST", "/data", {"train": digest})


def agl(*words: str) -> None:
    mask = os.umask(0o022)
    try:
        cli.main([str(word) for word in words], standalone_mode=False)
    finally:  # what else runs in the process keeps its own
        assert os.umask(mask) == 0o022


def test_commands_of_data_and_checkpoints(queue, here, monkeypatch, capsys):
    ann, address = queue.client("ann"), with_token(queue.thread.url, token_of(queue.folder, "ann"))
    monkeypatch.setenv("AGENT_LIGHTNING_SERVER_URL", address)
    agl("data", "upload", "--train", "train.jsonl", "--data-id", "mine")
    agl("data", "list", "--json")
    said = capsys.readouterr().out.removeprefix("mine\n")
    assert json.loads(said) == [{"id": "mine", "train_tasks": 2, "test_tasks": 0, "error": ""}]
    agl("data", "delete", "mine")
    assert ann.data() == []
    job = queue.begin(ann)
    for step in (999, 1000):
        folder = queue.folder / "ann/jobs" / job / f"run/checkpoints/step-{step:06d}"
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_text(f"weights {step}")
    capsys.readouterr()
    agl("model", "list")
    assert f"{job}/step-001000" in capsys.readouterr().out
    for given, step in ((f"{job}/step-999", 999), ("checkpoints/step-1000", 1000)):
        agl("model", "download", "--checkpoint", given, "--output", "got")
        assert (here / "got/model.safetensors").read_text() == f"weights {step}"


def test_the_script_of_an_agent_is_looked_at_before_a_job_begins(queue, tmp_path, monkeypatch):
    address = with_token(queue.thread.url, token_of(queue.folder, "ann"))
    (tmp_path / "five.py").write_text("agent = 5")
    (tmp_path / "helper_of_an_agent.py").write_text("agent = 5")
    (tmp_path / "asks_helper.py").write_text("from helper_of_an_agent import agent")
    monkeypatch.setattr("sys.path", [*sys.path])
    options = ("--data-id", "none", "--url", address)
    for script, said in {
        "nowhere.py": "no such file",
        "five.py": "has no function 'agent'",
        "asks_helper.py": "has no function 'agent'",
    }.items():
        with pytest.raises(click.UsageError, match=said):
            agl("train", "--agent-script", tmp_path / script, *options)
    (tmp_path / "my_agent.py").write_text("my_agent = print")
    with pytest.raises(TrainingError, match="you have no data 'none'"):
        agl("train", "--agent-script", tmp_path / "my_agent.py", *options)


def test_agl_model_keeps_what_was_there(capsys):
    pytest.importorskip("agl_torch")
    agl("model", "get", "--help")
    assert "smollm2" in capsys.readouterr().out


def test_a_revoked_token_is_refused_and_a_new_one_finds_all(queue, capsys):
    ann, folder = queue.client("ann"), ("--folder", queue.folder)
    job = queue.begin(ann)
    agl("server", "users", "revoke", "ann", *folder)
    with pytest.raises(ServerConnectionError, match="missing or was refused"):
        ann.jobs()
    with pytest.raises(ConfigError, match="no user 'ann'; there are: none"):
        agl("server", "users", "revoke", "ann", *folder)
    assert [one["id"] for one in queue.client("ann").jobs()] == [job]
    agl("server", "users", "list", *folder)
    assert capsys.readouterr().out == "ann\n"


def test_the_file_of_the_page_is_read(tmp_path, capsys, monkeypatch):
    pytest.importorskip("agl_torch")
    page = Path(__file__).parents[3] / "docs/howto/train-at-a-server.md"
    (text,) = re.findall(r"the file of a server -->\n```text\n(.*?)```", page.read_text(), re.S)
    file = tmp_path / "server_config.yaml"
    file.write_text(text)
    if find_spec("vllm") is None:
        with pytest.raises(ConfigError, match="server 'vllm' is not installed here"):
            read_settings(file, {"model.tensor_parallel": 4})
    given = {"model.tensor_parallel": 1, "runtime.gradient_accumulation": 4}
    assert read_settings(file, given, ["group_size=4"]) == Settings(
        algorithm={
            "type": "grpo",
            "model": "meta-llama/Llama-3.2-3B-Instruct",
            "dtype": "bfloat16",
            "server": {"replicas": 1, "max_model_tokens": 4096},
            "learning_rate": 5e-7,
            "kl": {"coefficient": 0.001},
            "clip": {"low": 0.2, "high": 0.2},
            "entropy_bonus": 0.01,
            "group_size": 4,
            "checkpoints": {"every": 100, "keep_last": 2},
        },
        jobs_at_once=2,
        quotas=Quotas(rollouts=10_000, tokens=5_000_000, seconds=36_000),
        batch_size=256,
    )
    assert "runtime.gradient_accumulation=4 is not needed" in capsys.readouterr().err
    monkeypatch.setenv("LIGHTNING_BATCH_SIZE", "16")
    monkeypatch.setenv("LIGHTNING_LEARNING_RATE", "1e-6")
    read = read_settings(file, {"model.path": "other"})
    assert (read.batch_size, read.algorithm["model"]) == (16, "other")
    assert (read.algorithm["learning_rate"], read.algorithm["group_size"]) == (1e-6, 8)
    given = {"model.path": "x", "algorithm.name": "ppo", "algorithm.actor_lr": 2e-6}
    read = read_settings(None, given, ["checkpoints={every: 5}"])
    assert (read.algorithm["checkpoints"], read.algorithm["learning_rate"]) == ({"every": 5}, 2e-6)


@pytest.mark.parametrize(
    ("text", "said"),
    {
        "model: {pth: x}": r"model\.pth: unknown key\. Did you mean 'model\.path'\?",
        "runtime: {batch_size: 256}": "which model",
        "model: {path: x}\nalgorithm: {kl_coeff: 1}": "kl_coeff",
        "model: {path: x}\nservice: {jobs_at_once: 0}": "jobs_at_once",
        "model: {path: x}\nservice: {quotas: {rolouts: 1}}": "Did you mean 'rollouts'",
        "model: x": r"bad\.yaml: model: expected keys and values, got 'x'",
        "": r"bad\.yaml: expected keys and values, got None",
        "model: {path: 5}": "model must be a name; got 5",
        "model: {path: ''}": "model must be a name; got ''",
        "model: {path: x}\nalgorithm: {name: [grpo]}": "algorithm must be a name; got",
        "model: {path: x}\nalgorithm: {type: ppo}": r"algorithm\.type: say --algorithm",
        "model: {path: x}\nalgorithm: {steps: 3}": r"algorithm\.steps: each job has its own",
        "model: {path: x}\nalgorithm: {name: apo}": "expected grpo",
    }.items(),
)
def test_what_is_wrong_in_a_file_is_said(tmp_path, text, said):
    pytest.importorskip("agl_torch")
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_settings(tmp_path / "bad.yaml", {})


def test_what_is_set_elsewhere_is_refused_and_what_is_empty_is_not_set(tmp_path, monkeypatch):
    pytest.importorskip("agl_torch")
    given = {"model.path": "x"}
    for option in ("type=ppo", "model=y", "groups_per_step=2", "run_dir=/tmp", "resume_from=x"):
        with pytest.raises(ConfigError, match=f"{option.partition('=')[0]}: (say|each)"):
            read_settings(None, given, [option])
    with pytest.raises(ConfigError, match="no such file"):
        read_settings(tmp_path / "nowhere.yaml", {})
    file = tmp_path / "server.yaml"
    file.write_text("model: {path: x}\nalgorithm: {checkpoints: {every: 7}}\nservice:\n")
    monkeypatch.setenv("LIGHTNING_RL_ALGORITHM", "")
    assert read_settings(file, {}).algorithm["checkpoints"] == {"every": 7}


def test_an_update_has_no_more_rollouts_than_the_server_allows(queue):
    queue.restart(batch_size=20)
    queue.lines.write_text('{"question": "?"}\n' * 12)
    job = queue.jobs.get("ann", queue.begin(queue.client("ann")))
    assert job.steps == 6  # 20 rollouts are 2 tasks of 8


@pytest.mark.parametrize("quota", [{"rollouts": 30}, {"tokens": 1000}, {"seconds": 5.0}])
def test_a_quota_that_is_reached_stops_and_refuses_jobs_and_says_so(queue, quota):
    queue.restart(quotas=Quotas(**quota))
    ann, bob = queue.client("ann"), queue.client("bob")
    (name, limit), used = *quota.items(), 16
    for number in range(2):
        run = queue.folder / "ann/jobs" / queue.begin(ann) / ("run", "agl-runs/evaluated")[number]
        run.mkdir(parents=True)
        line = {"step": 1, "rollouts/succeeded": 15, "rollouts/failed": 1, "time/step": 2.5}
        line |= {"tokens/sampled": 400, "val/tokens/given": 100}
        (run / "metrics.jsonl").write_text(json.dumps(line))
        used = {"rollouts": 32, "tokens": 1000, "seconds": 5}[name]
    said = f"user 'ann' has reached the quota of {name}: {used} of {limit:g}"
    with pytest.raises(InvalidConfigError, match=said):
        queue.begin(ann)
    queue.begin(bob)


def test_jobs_run_side_by_side_by_turns_of_users_and_stop_at_a_quota(queue):
    queue.restart(jobs_at_once=2, quotas=Quotas(rollouts=10))
    ann, bob = queue.client("ann"), queue.client("bob")
    first, second, other = queue.begin(ann), queue.begin(ann), queue.begin(bob)
    with running(queue.jobs):
        states = {("ann", first): "running", ("ann", second): "queued", ("bob", other): "running"}
        jobs = {key: queue.jobs.get(*key) for key in states}
        wait_until(lambda: {key: queue.now(job).state for key, job in jobs.items()} == states)
        run = queue.folder / "ann/jobs" / first / "run"
        run.mkdir(exist_ok=True)
        (run / "metrics.jsonl").write_text('{"step": 1, "rollouts/succeeded": 10}\n')
        own = jobs["ann", first], jobs["ann", second]
        wait_until(lambda: [queue.now(job).state for job in own] == ["stopped"] * 2)
        with pytest.raises(TrainingError, match="reached the quota of rollouts: 10 of 10"):
            ann.attach(first)
        assert queue.now(jobs["bob", other]).state == "running"


def test_job_that_another_turn_has_just_claimed_counts_for_its_user(queue, monkeypatch):
    ann, bob = queue.client("ann"), queue.client("bob")
    first, second, other = queue.begin(ann), queue.begin(ann), queue.begin(bob)
    begun, elsewhere = [], []
    take = jobs_module.LockFile

    def take_once(file):
        begun.append(file.parent.name)
        if not elsewhere:
            elsewhere.append(take(file))
        return take(file)

    monkeypatch.setattr(jobs_module, "LockFile", take_once)
    with running(queue.jobs):
        wait_until(lambda: len(begun) > 1)
    elsewhere[0].release()
    assert begun[:2] == [first, other]
    assert queue.now(queue.jobs.get("ann", second)).state == "queued"


def wait_until(holds) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_trajectories_and_run_are_those_of_the_jobs_rollouts(queue, ann, capsys):
    pytest.importorskip("agl_inspect")
    job = queue.begin(ann)
    with pytest.raises(InvalidConfigError, match="has no trajectories yet"):
        next(ann.trajectories(job))
    run = queue.folder / "ann/jobs" / job / "run"
    run.mkdir()
    with pytest.raises(InvalidConfigError, match="has no run yet"):
        ann.download_run(job, str(queue.folder / "mine"))
    assert not list(run.iterdir())  # nothing stands in the way of the store that comes
    ask(run / "store.db", record)
    (found,) = ann.trajectories(job)
    first, last = found.transitions
    assert (first.input, first.output, first.reward) == ("Capital of France?", "yes", 0.5)
    assert last.input == "user: Capital of France?\nassistant: yes\nuser: It is Paris."
    assert (last.output, last.reward, found.total_reward) == ("yes", 1.0, 1.5)
    assert found.metadata == {"num_steps": 2}
    assert last.metadata["messages"][-1] == {"role": "user", "content": "It is Paris."}
    (run / "metrics.jsonl").write_text('{"step": 1}\n')
    for _ in range(2):  # it may be asked again
        ann.download_run(job, str(queue.folder / "mine"))
    assert (queue.folder / "mine/metrics.jsonl").read_text() == '{"step": 1}\n'
    agl("rollouts", "--path", queue.folder / "mine", "--json")
    assert json.loads(capsys.readouterr().out)[0]["input"] == {"question": "Capital of France?"}
    with pytest.raises(TrainingError, match="no job"):
        queue.client("bob").download_run(job, "stolen")
    assert not list(run.parent.glob("run-*"))
    wait_until(lambda: not list(run.parent.glob("export-*")))


async def record(store) -> None:
    """A rollout of two calls, each with a reward."""
    await store.enqueue_rollout({"question": "Capital of France?"}, mode="train")
    rollout = await store.dequeue_rollout()
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    trace = Trace(rollout.attempt.attempt_id)
    turns = [{"role": "user", "content": "Capital of France?"}]
    for said, reward in (("It is Paris.", 0.5), ("", 1.0)):
        trace.gateway([1], [2], messages=turns)
        trace.reward(reward)
        turns = [*turns, {"role": "assistant", "content": "yes"}, {"role": "user", "content": said}]
    await store.add_many_spans([span.model_copy(update=ids) for span in trace.spans])
    await store.update_attempt(*ids.values(), status="succeeded")
