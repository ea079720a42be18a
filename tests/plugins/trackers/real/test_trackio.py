"""Trackio's own database has what a run wrote."""

import uuid
from pathlib import Path
from typing import Any

import pytest

import agl_trackers
from agl.errors import AlgorithmError

from ..runs import PROMPTS, SECRET, Fails, Learner, fit  # noqa: TID252

trackio = pytest.importorskip("trackio")
storage = pytest.importorskip("trackio.sqlite_storage")


@pytest.fixture
def project(monkeypatch):
    """Of each test its own: the folder of a process is read once, when Trackio is imported."""
    name = f"agl-test-{uuid.uuid4().hex[:8]}"
    yield name
    trackio.delete_project(name, force=True)


def logs(project: str, run: str, key: str) -> list[tuple[int, Any]]:
    found = storage.SQLiteStorage.get_logs(project, run)
    return [(line["step"], line[key]) for line in found if key in line]


def test_a_run_has_configuration_metrics_tables_prompts_and_checkpoints(tmp_path, project, capsys):
    fit(agl_trackers.Trackio(project=project), tmp_path, run="first")
    [run] = trackio.Api().runs(project)
    assert run.name == "first"
    assert run.config["algorithm"]["steps"] == 3
    assert run.config["algorithm"]["api_key"] == "***"
    assert SECRET not in repr(run.config)
    assert logs(project, "first", "reward/mean") == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert logs(project, "first", "val/reward/mean") == [(1, 0.5), (2, 1.0), (3, 1.5)]
    tables = dict(logs(project, "first", "rollouts"))
    rows = tables[2]["_value"]
    assert rows[0]["conversation"] == "user: Be kind. Is it?\n\nassistant: yes"
    assert (rows[1]["reward"], rows[1]["error"]) == (None, "agent: no kindness")
    texts = dict(logs(project, "first", "prompts/prompt"))
    assert PROMPTS[2] in texts[1]["_value"]

    artefacts = {one["name"]: one for one in storage.SQLiteStorage.list_artifacts(project)}
    versions = artefacts["first-prompt-prompt"]["versions"]
    assert [one["version"] for one in versions] == [2, 1, 0]
    trackio.init(project=project, name="reader")
    prompt = trackio.use_artifact("first-prompt-prompt:step-1")
    assert prompt.metadata == {"step": 1, "version": "prompt-2"}
    assert (Path(prompt.download(tmp_path / "p")) / "prompt.txt").read_text() == PROMPTS[2]
    saved = trackio.use_artifact("first-checkpoint:step-3")
    weights = Path(saved.download(tmp_path / "c")) / "weights.txt"
    assert weights.read_text() == "weights of step 3"
    trackio.finish()
    assert capsys.readouterr().out == ""


def test_a_run_that_goes_on_is_one_run_in_trackio(tmp_path, project):
    fit(agl_trackers.Trackio(project=project), tmp_path, run="first")
    again = Learner(steps=4, first=4)
    options: dict[str, Any] = {"run": "first", "resume": True, "force": True}
    fit(agl_trackers.Trackio(project=project), tmp_path, again, **options)
    assert len(trackio.Api().runs(project)) == 1
    assert [step for step, _ in logs(project, "first", "reward/mean")] == [1, 2, 3, 4]


def test_two_runs_of_one_name_are_two_in_trackio_and_each_goes_on_as_itself(tmp_path, project):
    def go(folder: str, first: int, **more: Any) -> None:
        learner = Learner(steps=first, first=first)
        tracked = agl_trackers.Trackio(project=project, name="ours")
        fit(tracked, tmp_path / folder, learner, run=folder, **more)

    go("a", 1)
    go("b", 1)
    go("a", 2, resume=True, force=True)
    assert len(trackio.Api().runs(project)) == 2
    assert [step for step, _ in logs(project, "ours a", "reward/mean")] == [1, 2]
    assert [step for step, _ in logs(project, "ours b", "reward/mean")] == [1]


def test_the_end_of_a_failed_run_is_an_alert_in_trackio(tmp_path, project):
    with pytest.raises(AlgorithmError):
        fit(agl_trackers.Trackio(project=project), tmp_path, Fails(), run="first")
    [alert] = trackio.Api().alerts(project)
    assert (alert["level"], alert["text"]) == ("error", "ValueError: no luck")
