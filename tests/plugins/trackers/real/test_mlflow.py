"""MLflow's own client reads what a run wrote to a local database."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

import agl_trackers
from agl.errors import AlgorithmError

from ..runs import PROMPTS, SECRET, Fails, Learner, fit  # noqa: TID252

mlflow = pytest.importorskip("mlflow")


@pytest.fixture
def client(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MLflow's default places are in the current folder
    return mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")


def tracker(client: Any, **options: Any) -> agl_trackers.MLflow:
    return agl_trackers.MLflow(tracking_uri=client.tracking_uri, **options)


def runs(client: Any, experiment: str = "agl") -> list[Any]:
    found = client.get_experiment_by_name(experiment)
    return list(client.search_runs([found.experiment_id]))


def points(client: Any, run: Any, name: str) -> list[tuple[int, float]]:
    return [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, name)]


def text(client: Any, run: Any, path: str) -> str:
    return Path(client.download_artifacts(run.info.run_id, path)).read_text()


def test_a_run_has_configuration_metrics_tables_prompts_and_checkpoints(tmp_path, client):
    fit(tracker(client, experiment="rooms"), tmp_path / "run", run="first")
    [run] = runs(client, "rooms")
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert run.data.tags["agl.algorithm"] == "learner"
    assert run.data.params["algorithm.steps"] == "3"
    assert run.data.params["algorithm.api_key"] == "***"
    config = text(client, run, "config.json")
    assert json.loads(config)["algorithm"]["steps"] == 3
    assert SECRET not in config
    assert points(client, run, "reward/mean") == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert points(client, run, "val/reward/mean") == [(1, 0.5), (2, 1.0), (3, 1.5)]

    files = [one.path for one in client.list_artifacts(run.info.run_id, "rollouts")]
    assert files == [f"rollouts/step-00000{step}.csv" for step in (1, 2, 3)]
    table = io.StringIO(text(client, run, files[1]), newline="")
    rows = list(csv.DictReader(table))
    assert [row["step"] for row in rows] == ["2", "2"]
    said = " ".join(rows[0]["conversation"].split())
    assert said == "user: Be kind. Is it? assistant: yes"
    assert (rows[1]["reward"], rows[1]["error"]) == ("", "agent: no kindness")

    assert text(client, run, "prompts/prompt/step-000001-prompt-2.txt") == PROMPTS[2]
    versions = [client.get_prompt_version("rooms.prompt", number) for number in ("1", "2", "3")]
    assert [one.template for one in versions] == [PROMPTS[1], PROMPTS[2], PROMPTS[0]]
    assert [one.tags["version"] for one in versions] == ["prompt-1", "prompt-2", "prompt-3"]
    saved = "checkpoints/step-000003/weights.txt"
    assert text(client, run, saved) == "weights of step 3"
    assert run.data.tags["agl.checkpoint"].endswith("step-000003")


def test_a_run_that_goes_on_is_one_run_in_mlflow(tmp_path, client):
    fit(tracker(client), tmp_path / "run", run="first")
    again = Learner(steps=4, first=4)
    fit(tracker(client), tmp_path / "run", again, run="first", resume=True, force=True)
    [run] = runs(client)
    assert [step for step, _ in points(client, run, "reward/mean")] == [1, 2, 3, 4]
    assert json.loads(text(client, run, "config-2.json"))["algorithm"]["steps"] == 4
    assert run.data.params["algorithm.steps"] == "3"  # a parameter of MLflow never changes


def test_a_failed_run_is_a_failed_run_in_mlflow(tmp_path, client):
    with pytest.raises(AlgorithmError):
        fit(tracker(client, register_prompts=False), tmp_path / "run", Fails())
    [run] = runs(client)
    assert run.info.status == "FAILED"
    assert run.data.tags["agl.error"] == "ValueError: no luck"


def test_the_agents_own_mlflow_is_left_alone(tmp_path, client):
    before = mlflow.get_tracking_uri()
    fit(tracker(client), tmp_path / "run")
    assert mlflow.get_tracking_uri() == before
    assert mlflow.active_run() is None
