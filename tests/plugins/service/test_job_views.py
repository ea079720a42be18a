"""What a client is told of jobs: their rewards, checkpoints, errors; and who is refused."""

import json
import math
import time
from concurrent.futures import ThreadPoolExecutor

import click
import pytest

from agl_service import (
    AuthenticationError,
    Client,
    DataUploadError,
    InvalidConfigError,
    TrainingError,
    data as files,
)
from agl_service.trajectories import read_trajectories
from agl_service.users import revoke_user

from .test_jobs import agl, ann as ann, queue as queue, running, wait_until


def trained(queue, client, *lines, steps=(1, 2)):
    """A job that has finished, with these metrics and checkpoints."""
    job = queue.jobs.get(client.name, queue.begin(client))
    run = queue.jobs.folder_of(job) / "run"
    for step in steps:
        folder = run / f"checkpoints/step-{step:06d}"
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_text(f"weights {step}")
    (run / "run.json").write_text('{"run": "20261130T000000Z-1234", "generation": 2}')
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    queue.jobs.change(job, "finished")
    return job


def test_an_update_without_rewards_keeps_its_place_and_seconds_are_those_of_all_starts(queue, ann):
    first = {"step": 1, "reward/mean": 0.5, "time/step": 2.0, "generation": 1}
    job = trained(queue, ann, first, {"step": 2, "time/step": 3.0, "generation": 2})
    result = ann.attach(job.id)
    assert result.train_rewards[0] == result.final_reward == 0.5
    assert math.isnan(result.train_rewards[1])
    assert (result.total_time, result.run) == (5.0, "20261130T000000Z-1234")
    nothing = ann.attach(trained(queue, ann, {"step": 1, "time/step": 1.0}).id)
    assert math.isnan(nothing.final_reward)


def test_best_is_by_evaluations_and_else_refused(queue, ann, tmp_path):
    trained(queue, ann, {"step": 0, "val/reward/mean": 0.9}, {"step": 2, "reward/mean": 0.7})
    with pytest.raises(TrainingError, match=r"no checkpoint 'best'.*where evaluations"):
        ann.download_model(str(tmp_path / "got"), "best")
    lines = [{"step": step, "val/reward/mean": 1.0 - step / 4} for step in range(3)]
    trained(queue, ann, *lines)
    ann.download_model(str(tmp_path / "got"), "best")
    assert (tmp_path / "got/model.safetensors").read_text() == "weights 1"


def test_an_evaluation_is_of_what_was_trained_last_unless_it_says_base(queue, ann):
    ann.upload_data(str(queue.lines))

    def evaluated(**options):
        known = {job.id for job in queue.jobs.all("ann")}
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(ann.evaluate, print, **options)
            wait_until(lambda: len(queue.jobs.all("ann")) > len(known) or ended.done())
            (job,) = (one for one in queue.jobs.all("ann") if one.id not in known)
            result = {"tasks": [{"rewards": []}], "metrics": {}, "failures": {"agent": 1}}
            (queue.jobs.folder_of(job) / "result.json").write_text(json.dumps(result))
            queue.jobs.change(job, "finished")
            assert math.isnan(ended.result().mean_reward)
            return ended.result().checkpoint

    assert evaluated() == "base"
    job = trained(queue, ann)
    assert evaluated() == f"{job.id}/step-000002"
    assert evaluated(checkpoint="base") == "base"


def test_the_same_id_for_another_request_is_refused(queue, ann):
    data = ann.upload_data(str(queue.lines))
    body = {"id": "same", "kind": "train", "data": data}
    assert ann._ask("POST", "/jobs", body) == ann._ask("POST", "/jobs", body)
    with pytest.raises(InvalidConfigError, match="'same' was asked for with other options"):
        ann._ask("POST", "/jobs", {**body, "kind": "evaluate"})


def test_tokens_of_runners_are_for_those_who_work(queue, ann):
    job = queue.begin(ann)
    assert "token" not in ann.jobs()[0]
    assert "token" not in ann._ask("GET", f"/jobs/{job}")
    assert ann._ask("GET", f"/jobs/{job}?has_workers=1")["token"]


def test_who_is_revoked_is_told_so_at_once(queue, ann):
    job = queue.begin(ann)
    begin = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        attached = pool.submit(ann.attach, job)
        revoke_user(queue.folder, "ann")
        with pytest.raises(AuthenticationError, match="the token is missing or was refused"):
            attached.result()
    assert time.monotonic() - begin < ann.timeout / 4


def test_a_machines_settings_replace_neither_token_nor_choice(queue, ann, monkeypatch):
    sent, netrc = [], queue.folder / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password other\n")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "nowhere.pem")
    monkeypatch.setenv("SSL_CERT_FILE", "")
    assert Client("https://agl:x@127.0.0.1")._verify is True
    ann._verify = False
    adapter = ann._session.get_adapter(ann._url)
    send = adapter.send
    adapter.send = lambda request, **about: sent.append((request, about)) or send(request, **about)
    ann.jobs()
    ((request, about),) = sent
    assert request.headers["Authorization"].startswith("Bearer ")
    assert about["verify"] is False


def run_jobs(queue, job):
    with running(queue.jobs):
        wait_until(lambda: queue.now(job).state not in ("queued", "running"))
    return queue.now(job)


def test_a_job_whose_files_fail_is_the_only_one_that_fails(queue, ann, monkeypatch):
    monkeypatch.setattr("agl_service.jobs.sys.executable", "false")
    first, second = (queue.jobs.get("ann", queue.begin(ann)) for _ in range(2))
    (queue.jobs.folder_of(first) / "log.txt").mkdir()
    second, first = run_jobs(queue, second), queue.now(first)
    assert (first.state, second.state) == ("failed", "failed")
    assert "Is a directory" in first.error
    assert second.error == "its process ended with code 1"


def test_an_error_is_that_of_this_start(queue, ann, monkeypatch):
    monkeypatch.setattr("agl_service.jobs.sys.executable", "false")
    job = queue.jobs.get("ann", queue.begin(ann))
    (queue.jobs.folder_of(job) / "log.txt").write_text("agl: an error of last week\n")
    job = run_jobs(queue, job)
    assert job.error == "its process ended with code 1"


def test_data_that_is_deleted_meanwhile_is_refused(queue, ann, monkeypatch):
    ann.upload_data(str(queue.lines), data_id="a")
    check = files._check_file

    def deleted_after_the_check(*given):
        found = check(*given)
        if any(one["id"] == "a" for one in ann.data()):
            ann.delete_data("a")
        return found

    monkeypatch.setattr(files, "_check_file", deleted_after_the_check)
    with pytest.raises(DataUploadError, match="deleted meanwhile; upload it again"):
        ann.upload_data(str(queue.lines), data_id="b")
    ann.upload_data(str(queue.lines), data_id="b")
    (file,) = (queue.folder / "ann/files").iterdir()
    file.unlink()
    with pytest.raises(DataUploadError, match="deleted meanwhile; upload it again"):
        ann._begin("train", "b")
    assert list((queue.folder / "ann/jobs").iterdir()) == []


def test_an_id_that_is_given_anew_leaves_no_file_behind(queue, ann):
    ann.upload_data(str(queue.lines), data_id="a")
    queue.lines.write_text('{"question": "another"}\n')
    ann.upload_data(str(queue.lines), data_id="a")
    (file,) = (queue.folder / "ann/files").iterdir()
    assert file.read_text() == queue.lines.read_text()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("tasks.json", '[\n{"question": 1},\n\n{"q": 1}]', r"tasks\.json, task 2: expected"),
        ("tasks.csv", "question,x\na,b\n", None),
        ("tasks.csv", "text\na\n", r"tasks\.csv, task 1: expected"),
        ("tasks.jsonl", '{"question": 1}\n\ufeff{"question": 2}\n', "line 2: expected"),
        ("tasks.jsonl", '\ufeff{"question": 1}\n', None),
    ],
)
def test_tasks_of_each_form_are_checked_and_counted(queue, ann, name, content, said):
    file = queue.lines.with_name(name)
    file.write_text(content)
    if said is None:
        ann.upload_data(str(file))
        assert ann.data()[0]["train_tasks"] == 1
    else:
        with pytest.raises(DataUploadError, match=said):
            ann.upload_data(str(file))


def test_messages_without_content_have_no_text(queue):
    asks = {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]}
    tells = {"role": "tool", "tool_call_id": "c"}
    record = {"prompt": [asks, tells], "completion": [{"role": "assistant", "content": "yes"}]}
    record |= {"reward": None, "provenance": {"rollout_id": "r"}}
    (found,) = read_trajectories([json.dumps(record).encode()])
    assert found.transitions[0].input == "assistant: \ntool: "


def test_a_server_that_ended_unforeseen_does_not_run(queue):
    queue.folder.mkdir(exist_ok=True)
    (queue.folder / "server.json").write_text("{}")
    for command in ("status", "stop"):
        with pytest.raises(click.UsageError, match="no server runs in"):
            agl("server", command, "--folder", queue.folder)
