"""``azure-sft`` over the real line and Azure's real SDKs, against a local Azure."""

import asyncio
import json
import logging
import shutil
from pathlib import Path

import pytest
from tests.waiting import until

import agl
from agl.errors import AlgorithmError, ConfigError, StoppedError

from ..agents import CAPITALS, capitals  # noqa: TID252
from ..conftest import everything_written  # noqa: TID252
from ..line import end_after_a_step  # noqa: TID252
from .azure_server import Login

TASKS = list(CAPITALS)


def posts(azure, what):
    return [line for line in azure.log if line.startswith(what)]


async def test_the_next_version_has_learned_and_no_secret_is_written(
    azure, sft, line, tmp_path, caplog
):
    caplog.set_level(logging.DEBUG, "agl")
    algorithm = await line(capitals, sft(iterations=2, epochs=3), TASKS, TASKS)
    summary = algorithm.summary
    assert summary["rewards"][0] < 0.7
    assert summary["rewards"][1] == 1.0
    assert [number for number, _ in summary["val_rewards"]] == [0, 1, 2]
    assert summary["val_rewards"][-1][1] == 1.0
    first, second = azure.jobs.values()
    assert first["model"] == "gpt-base-2026-01-01"
    assert first["hyperparameters"] == {"n_epochs": 3}
    assert second["model"] == first["fine_tuned_model"]
    assert summary["model"] == second["fine_tuned_model"]
    assert summary["calls"] == summary["calls_trained"] + sum(summary["calls_excluded"].values())
    assert azure.files == {}
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    key = "train/trained_tokens"
    trained = [one[key] for one in map(json.loads, lines) if key in one]
    assert trained == [job["trained_tokens"] for job in (first, second)]
    texts = [caplog.text, *await everything_written(line.store, tmp_path / "run")]
    for secret in (azure.key, azure.token):
        assert not any(secret in text for text in texts)


async def test_old_deployments_go_before_new_ones_come(azure, sft, line, caplog):
    caplog.set_level(logging.WARNING)
    await line(capitals, sft(iterations=3, max_deployments=1), TASKS, TASKS)
    assert sorted(azure.deployments) == ["base", "base-ft_v03"]
    assert azure.most_deployments == 1
    assert "costs by the hour until it is deleted: base-ft_v03" in caplog.text


@pytest.mark.parametrize("is_ended", [False, True])
async def test_no_deployment_need_stay(azure, sft, line, is_ended):
    algorithm = sft(iterations=3 if is_ended else 1, keep_deployment=False)
    await line(capitals, end_after_a_step(algorithm) if is_ended else algorithm, TASKS, TASKS)
    assert algorithm.summary["iterations"] == 1
    assert list(azure.deployments) == ["base"]


async def test_a_step_is_not_paid_for_a_second_time_to_be_compared(azure, sft, line):
    with pytest.raises(ConfigError, match="cannot train a step again: its provider would bill it"):
        await sft().replay(1)


@pytest.mark.parametrize(
    ("fault", "options", "kind", "said", "sent"),
    [
        # Of files and jobs.
        ("", {"max_trained_tokens": 10}, StoppedError, "is 10 .nothing was sent; raise it", (0, 0)),
        ("", {"keep_fraction": 0.1}, AlgorithmError, "and Azure trains on 10 or more", (0, 0)),
        ("", {"base_deployment": "bass"}, ConfigError, "'bass' in 'acme'; there are: base", (0, 0)),
        ("no_training", {}, ConfigError, "fine-tuning in this region.*region", (1, 1)),
    ],
)
async def test_what_cannot_train_is_refused(azure, sft, line, fault, options, kind, said, sent):
    azure.region_trains = fault != "no_training"
    with pytest.raises(kind, match=said):
        await line(capitals, sft(**options), TASKS)
    asked = ("POST /openai/files", "POST /openai/fine_tuning")
    assert tuple(len(posts(azure, what)) for what in asked) == sent
    assert (await agl.load_ledger(line.store)).trained == []


@pytest.mark.parametrize("takes_deletes", [True, False])
async def test_a_job_that_fails_says_why_and_the_next_run_starts_another(
    azure, sft, line, takes_deletes
):
    said = "The provided training data failed RAI checks for harm types: [violence]."
    azure.fail_jobs = [{"code": "trainingDataFailedRAI", "message": said}]
    azure.takes_deletes = takes_deletes
    because = r"(?s)harm types: \[violence\].*content filter refused the training data"
    with pytest.raises(AlgorithmError, match=because):
        await line(capitals, sft(), TASKS)
    assert (azure.files == {}) is takes_deletes
    azure.takes_deletes = True
    algorithm = await line(capitals, sft(), TASKS)
    assert [job["status"] for job in azure.jobs.values()] == ["failed", "succeeded"]
    assert algorithm.summary["model"] == list(azure.jobs.values())[1]["fine_tuned_model"]


async def test_a_file_that_could_not_be_read_is_sent_again_by_the_next_run(azure, sft, line):
    azure.unreadable_files = True
    with pytest.raises(AlgorithmError, match=r"not read training file .*data failed"):
        await line(capitals, sft(), TASKS)
    azure.unreadable_files = False
    await line(capitals, sft(), TASKS)
    assert [job["status"] for job in azure.jobs.values()] == ["succeeded"]
    assert len(posts(azure, "POST /openai/files")) == 2
    assert azure.files == {}


async def test_a_lost_answer_does_not_start_a_second_job(azure, sft, line):
    azure.lose_job_answers = 1
    await line(capitals, sft(), TASKS)
    assert len(azure.jobs) == 1


async def test_an_outage_while_a_job_runs_is_waited_for(azure, sft, line):
    azure.hold_jobs = True
    running = asyncio.create_task(line(capitals, sft(), TASKS))
    await until(lambda: azure.log and azure.log[-1].startswith("GET /openai/fine_tuning/jobs/"))
    await asyncio.to_thread(azure.server.stop)
    await asyncio.sleep(1)
    azure.server.start()
    azure.hold_jobs = False
    await running
    assert len(azure.jobs) == 1


async def test_a_stopped_run_takes_up_its_job(azure, sft, line, caplog):
    algorithm = sft(poll_seconds=0.5)
    running = asyncio.create_task(line(capitals, algorithm, TASKS))
    await until(lambda: azure.jobs)
    await asyncio.sleep(0.1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert "goes on at Azure, and is paid for" in caplog.text
    await line(capitals, sft(), TASKS)
    assert [job["status"] for job in azure.jobs.values()] == ["succeeded"]
    assert len(posts(azure, "POST /openai/v1/chat")) == 24 * len(TASKS)
    assert len(posts(azure, "POST /openai/files")) == 1
    assert azure.files == {}


@pytest.mark.parametrize("event", ["job", "uploaded"])
async def test_what_a_kill_left_out_of_the_notes_is_found_at_azure(azure, sft, line, event):
    algorithm = await line(capitals, sft(keep_files=True), TASKS)
    path = Path(algorithm.run_dir) / "notes.jsonl"
    shutil.rmtree(path.with_name("checkpoints"))
    lines = path.read_text().splitlines()
    cut = next(n for n, text in enumerate(lines) if json.loads(text)["event"] == event)
    path.write_text("".join(f"{text}\n" for text in lines[:cut]))
    again = await line(capitals, sft(keep_files=True), TASKS)
    assert len(azure.jobs) == 1
    assert len(posts(azure, "POST /openai/files")) == 1
    assert again.summary["model"] == algorithm.summary["model"]


async def test_a_deployment_that_never_gets_ready_ends_the_wait(azure, sft, line):
    azure.deployments_get_ready = False
    with pytest.raises(AlgorithmError, match=r"base-ft_v01' to be ready; it is 'Creating' now"):
        await line(capitals, sft(deployment_timeout_seconds=0.3), TASKS, TASKS)
    azure.deployments_get_ready = True
    algorithm = await line(capitals, sft(), TASKS, TASKS)
    assert len(azure.jobs) == 1
    assert algorithm.summary["val_rewards"][-1][1] == 1.0


async def test_a_failed_deployment_is_deleted_and_made_again(azure, sft, line):
    azure.fail_deployments = 1
    with pytest.raises(AlgorithmError, match="ended as Failed"):
        await line(capitals, sft(), TASKS, TASKS)
    assert list(azure.deployments) == ["base"]
    await line(capitals, sft(), TASKS, TASKS)
    assert sorted(azure.deployments) == ["base", "base-ft_v01"]


async def test_a_spent_quota_says_so_and_leaves_nothing_behind(azure, sft, line, caplog):
    azure.quota_left = 10
    with pytest.raises(AlgorithmError, match=r"InsufficientQuota.*lower 'capacity'"):
        await line(capitals, sft(), TASKS, TASKS)
    assert "stay at Azure" not in caplog.text
    algorithm = await line(capitals, sft(capacity=5), TASKS, TASKS)
    assert len(azure.jobs) == 1
    assert algorithm.summary["val_rewards"][-1][1] == 1.0


async def test_a_busy_service_is_waited_for(azure, sft, line):
    algorithm = sft()
    running = asyncio.create_task(line(capitals, algorithm, TASKS, TASKS))
    await until(lambda: azure.files)
    azure.busy = 4
    await running
    assert azure.busy == 0
    assert len(azure.jobs) == 1


@pytest.mark.parametrize("what", ["key", "token"])
async def test_an_expired_key_is_a_wrong_configuration(azure, sft, line, what):
    given = getattr(azure, what)
    algorithm = sft(api_key=azure.key, credential=Login(azure.token))
    setattr(azure, what, "renewed-000000000")
    azure.echo_key = True
    with pytest.raises(ConfigError, match=r"401.*expired") as caught:
        await line(capitals, algorithm, TASKS)
    assert given not in str(caught.value)


async def test_deployments_of_others_are_not_touched(azure, sft, line):
    azure.add_deployment("base-ft_v01", "somebody-elses", "Succeeded")
    with pytest.raises(ConfigError, match="with the model 'somebody-elses'"):
        await line(capitals, sft(keep_deployment=False), TASKS, TASKS)
    assert "base-ft_v01" in azure.deployments


async def test_calls_that_the_content_filter_refused_are_reported(azure, sft, line, caplog):
    azure.filtered = {TASKS[0]}
    algorithm = await line(capitals, sft(rollouts_per_task=30), TASKS)
    assert "the content filter refused or cut off 30 model calls" in caplog.text
    assert algorithm.summary["calls_excluded"]["failed_attempt"] == 30


async def test_a_login_serves_in_the_place_of_a_key(azure, sft, line):
    azure.key = "of no use"
    algorithm = await line(capitals, sft(api_key=None), TASKS, TASKS)
    assert algorithm.summary["val_rewards"][-1][1] == 1.0


async def test_without_a_login_the_error_says_how_to_log_in(azure, sft, line):
    class NoLogin:
        def get_token(self, *scopes, **options):
            from azure.core.exceptions import ClientAuthenticationError

            raise ClientAuthenticationError("nobody is logged in")

    for options in ({}, {"api_key": None}):
        with pytest.raises(ConfigError, match=r"nobody is logged in.*'az login'"):
            await line(capitals, sft(credential=NoLogin(), **options), TASKS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deterministic": True}, "deterministic=True cannot be promised"),
        ({"endpoint": "acme"}, "endpoint is 'acme'; expected the address"),
        ({"suffix": "no spaces"}, "suffix is 'no spaces'"),
        ({"deployment_name": "a/b"}, "deployment_name is 'a/b'"),
    ],
)
def test_wrong_options_are_refused(sft, options, message):
    with pytest.raises(ConfigError, match=message):
        sft(**options)
