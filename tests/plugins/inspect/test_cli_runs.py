"""``agl runs``: what was run, side by side, and away with one."""

import asyncio
import functools
import json
import os
import platform
import random
import re
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.run_project import begin, refuses, succeeds

from agl_learning.run.folder import begin_generation
from agl_runs.records import RunStart
from agl_runs.store import begin_run, end_run
from agl_sqlite import SqliteLightningStore

from .traces import add, filled, reward_span

pytestmark = pytest.mark.usefixtures("project")


def told(agl, *command: str) -> Any:
    """What a command writes as JSON."""
    return json.loads(agl(*command, "--json").out)


def test_damaged_store_is_named_and_stands_in_no_other_run_s_way(agl):
    stopped = begin(agl, "algorithm.stop_after=1")
    other = Path("agl-runs/a-broken-one")
    other.mkdir()
    (other / "store.db").write_bytes(random.Random(1).randbytes(9000))
    rows = told(agl, "runs")
    assert [row["run"] for row in rows] == [stopped, "a-broken-one"]
    words = r"a-broken-one: store 'agl-runs.a-broken-one.store\.db': .*: file is not a database\."
    assert re.search(words, agl("runs").err)
    assert agl("runs", "compare", stopped, stopped).code == 0
    result = succeeds(agl, "run", "--resume")
    assert f"run: {stopped}\n" in result.err
    refuses(agl, "store.db", "run", "agl.yaml", "--resume", "a-broken-one")


def test_runs_are_listed_and_no_file_is_left_behind(agl, project):
    assert agl("runs").code == 0
    first = begin(agl, "algorithm.stop_after=1")
    second = begin(agl)
    before = sorted(project.rglob("*"))
    rows = told(agl, "runs")
    names = ("run", "state", "starts", "algorithm", "step", "reward", "held_out")
    about = [(first, "stopped", 1, "learn", 1, 0.25), (second, "finished", 1, "learn", 2, 0.5)]
    expected = [(*one, None) for one in about]
    assert [tuple(row[name] for name in names) for row in rows] == expected
    assert rows[0]["folder"] == str(project / "agl-runs" / first)
    assert first in agl("runs").out
    assert len(told(agl, "runs", "--path", f"agl-runs/{first}")) == 1
    text = agl("runs", "show", second).out
    assert "algorithm.rate" in text
    assert "agl-core" in text
    words = f"is part of the ids of 2 runs, the newest of which are {first}, {second}. Give one"
    refuses(agl, words, "runs", "show", "2")
    refuses(agl, f"no run 'nope' here; the newest are: {first}, {second}", "runs", "show", "nope")
    assert told(agl, "runs", "show", second)["status"] == "finished"
    assert sorted(project.rglob("*")) == before


def test_rewards_have_four_digits_in_tables_and_all_in_json(agl, project):
    run, other = begin(agl, "algorithm.stop_after=1"), begin(agl, "algorithm.stop_after=1")
    reward = 5 / 13
    for one in (run, other):
        metrics = project / "agl-runs" / one / "metrics.jsonl"
        values = {"step": 1, "reward/mean": reward, "val/reward/mean": reward / 2}
        metrics.write_text(json.dumps(values) + "\n")
    for command in (("runs",), ("runs", "show", run), ("runs", "compare", run, other)):
        assert "0.3846" in (text := agl(*command).out)
        assert "0.38461" not in text
    [row, _] = told(agl, "runs")
    assert (row["reward"], row["held_out"]) == (reward, reward / 2)


def test_folder_that_there_is_not_is_not_named(agl, project):
    async def fill(store: Any) -> None:
        for host, run_id in ((platform.node(), "here"), ("elsewhere", "there")):
            about = {"algorithm": "toy", "folder": f"/gone/{run_id}", "pid": 1, "host": host}
            await begin_run(store, RunStart(run_id=run_id, **about))
            await end_run(store, run_id, 1, "finished")

    filled(fill, "shared.db")
    rows = told(agl, "runs", "--path", "shared.db")
    folders = {row["run"]: row["folder"] for row in rows}
    assert folders == {"here": None, "there": "/gone/there"}
    assert "/gone" not in agl("runs", "--path", "shared.db", "show", "here").out
    table = agl("runs", "--path", "shared.db")
    assert (table.code, "here" in table.out, "there" in table.out) == (0, True, True), table.err


def test_runs_are_compared_task_by_task_while_their_stores_are_in_use(agl, project):
    first = begin(agl, "algorithm.steps=1")
    (project / "tasks.jsonl").write_text('{"x": 1}\n{"x": 3}\n')
    second = begin(agl, "algorithm.rate=0.5")
    store = SqliteLightningStore(f"agl-runs/{first}/store.db")  # as the run itself would have it
    try:
        found = told(agl, "runs", "compare", first, second)
    finally:
        asyncio.run(store.close())
    assert found["runs"] == [first, second]
    assert found["options"]["algorithm.rate"] == [0.1, 0.5]
    assert found["options"]["algorithm.steps"] == [1, 2]
    assert "train tasks" in found["options"]
    assert found["code"] == {}
    assert found["rewards"] == [[1, 0.25, 0.25], [2, None, 0.5]]
    assert found["totals"]["rollouts succeeded"] == [2, 4]
    assert found["totals"]["mean reward"] == [0.75, 2.0]
    assert found["tasks"] == [['train: {"x": 1}', 1.0, 1.0]]
    text = agl("runs", "compare", first, second).out
    assert 'train: {"x": 1}' in text


def test_run_is_deleted_with_its_folder_when_asked(agl, project, monkeypatch):
    first, second = begin(agl), begin(agl)
    asked = mock.Mock(return_value=False)
    monkeypatch.setattr("click.confirm", asked)
    assert agl("runs", "delete", first).code == 1
    assert f"Delete run {first} with 0 resources, 4 rollouts, 4 att" in asked.call_args.args[0]
    assert len(told(agl, "runs")) == 2
    result = succeeds(agl, "runs", "delete", first, "--yes", "--json")
    said = json.loads(result.out)
    assert said.pop("spans") >= 4
    counts = {"resources": 0, "rollouts": 4, "attempts": 4, "documents": 0}
    assert said == {"run": first, **counts}
    assert (project / "agl-runs" / first / "store.db").is_file()
    assert agl("runs", "delete", second, "--yes", "--folder").code == 0
    assert not (project / "agl-runs" / second).exists()
    assert told(agl, "runs") == []


def test_run_of_a_machine_that_is_gone_is_deleted_by_force(agl, project):
    for run_id, host, pid in (("there", "gone", 1), ("here", platform.node(), os.getppid())):
        start = RunStart(run_id=run_id, algorithm="toy", host=host, pid=pid)
        filled(functools.partial(begin_run, start=start), "kept.db")
    delete = ("runs", "--path", "kept.db", "delete", "--yes")
    words = "is running (process 1 on gone); stop it first; if that machine is gone, delete it with"
    refuses(agl, words, *delete, "there")
    assert agl(*delete, "there", "--force").code == 0
    refuses(agl, "stop it first\n", *delete, "here", "--force")
    rows = told(agl, "runs", "--path", "kept.db")
    assert [row["run"] for row in rows] == ["here"]


def test_folder_that_holds_more_than_the_run_is_not_removed(agl, project):
    run_id = begin(agl, "run_dir=.")
    delete = ("runs", "--path", "store.db", "delete", run_id, "--yes", "--folder")
    refuses(agl, "without --folder", *delete)
    assert (project / "tasks.jsonl").is_file()


@pytest.mark.parametrize("name", ["the id", "another"])
def test_copy_of_a_run_is_deleted_with_its_own_folder(agl, project, name):
    run_id = begin(agl)
    folder, kept = project / "agl-runs" / run_id, project / "kept"
    copy = kept / (run_id if name == "the id" else name)
    shutil.copytree(folder, copy)
    delete = ("runs", "--path", str(copy / "store.db"), "delete", run_id)
    succeeds(agl, *delete, "--folder", "--yes")
    assert (folder.exists(), copy.exists()) == (True, False)


@pytest.mark.parametrize("is_copy", [True, False])
def test_report_and_show_of_a_run_that_lies_elsewhere_are_of_its_files_there(agl, project, is_copy):
    run_id = begin(agl)
    old, new = project / "agl-runs" / run_id, project / "agl-runs/elsewhere"
    checkpoint = old / "checkpoints/step-000002"
    checkpoint.mkdir(parents=True)
    (old / "report.html").write_text("untouched")
    (old / "run.json").unlink()
    number = begin_generation(old, run=run_id, algorithm="learn").number
    said = {"generation": number, "checkpoint": str(checkpoint)}
    (old / "summary.json").write_text(json.dumps(said))
    if is_copy:
        shutil.copytree(old, new)
    else:
        old.rename(new)
    metrics = new / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace("0.25", "9.5"))
    reported = succeeds(agl, "report", str(new))
    assert "9.5 -> 0.5 in training" in reported.out
    assert re.search(r"model +agl-runs/elsewhere/checkpoints/step-000002", reported.out)
    assert "untouched" not in (new / "report.html").read_text()
    assert not is_copy or (old / "report.html").read_text() == "untouched"
    shown = agl("show", run_id, "--path", str(new)).out
    assert "9.5 -> 0.5 in training" in shown
    assert f"folder   {new}" in shown


def test_a_folder_without_a_run_is_named(agl, project):
    Path("elsewhere").mkdir()
    refuses(agl, "no run 'elsewhere' here", "runs", "show", "elsewhere")


def test_a_run_is_named_by_its_id_a_part_of_it_its_folder_or_its_store(agl, project):
    run_id, _ = begin(agl), begin(agl)
    folder = f"agl-runs/{run_id}"
    rollout = told(agl, "rollouts", "--path", folder)[0]["rollout_id"]
    for name in (run_id, run_id[8:], folder, f"{folder}/store.db"):
        assert told(agl, "runs", "show", name)["run_id"] == run_id
        assert told(agl, "ledger", name)["rollouts_without_account"] == 4
        for command in ("show", "spans", "explain"):
            assert agl(command, rollout, "--path", name).code == 0
        for given in ([name], ["--path", name], [run_id, "--path", name]):  # not the newest store
            assert rollout in [one["rollout_id"] for one in told(agl, "rollouts", *given)]


@pytest.mark.parametrize("name", ["v1.2", "toy"])
def test_a_run_is_named_whatever_its_name(agl, project, name):
    async def fill(store: Any) -> None:
        await begin_run(store, RunStart(run_id=name, algorithm="toy"))
        await end_run(store, name, 1, "finished")

    Path("agl-runs", name).mkdir(parents=True)
    filled(fill, f"agl-runs/{name}/store.db")
    Path("toy").mkdir()  # as the folder of an example
    for command in (["runs", "show"], ["ledger"], ["rollouts"], ["rollouts", "--path"]):
        assert agl(*command, name).code == 0, command


def test_tasks_of_a_run_are_listed_from_the_greatest_loss_to_the_greatest_gain(agl):
    rewards = {  # of two rollouts each, by step
        "worse": {0: [1.0, 1.0], 10: [0.0, 0.5], 30: [0.5, 0.5]},
        "better": {0: [0.0, 0.0], 30: [1.0, 0.5]},
        "same": {10: [0.5, 0.5], 30: [0.5, 0.5]},
        "once": {10: [0.5]},
    }

    async def fill(store: Any) -> None:
        await begin_run(store, RunStart(run_id="r", algorithm="toy"))
        for task, by_step in rewards.items():
            for step, given in by_step.items():
                about = {"task": {"q": task}, "mode": "val", "metadata": {"run": "r", "step": step}}
                for reward in given:
                    await add(store, [reward_span(reward)], **about)
                await add(store, [], "failed", **about)
        await end_run(store, "r", 1, "finished")

    filled(fill, "shared.db")
    tasks = ("runs", "--path", "shared.db", "tasks", "r")
    names = ("first", "last", "difference", "first_step", "last_step", "rollouts")
    found = [(one["task"]["q"], *(one[name] for name in names)) for one in told(agl, *tasks)]
    assert found == [
        ("worse", 1.0, 0.5, -0.5, 0, 30, 6),
        ("same", 0.5, 0.5, 0.0, 10, 30, 4),
        ("better", 0.0, 0.75, 0.75, 0, 30, 4),
    ]
    lines = agl(*tasks, "--mode", "val").out.splitlines()
    assert " ".join(lines[2].split()) == 'val: {"q": "worse"} 1 0.5 -0.5 0 to 30 6'
    assert "no task has" in agl(*tasks, "--mode", "train").err
    sides = told(agl, "runs", "--path", "shared.db", "compare", "r@10", "r@30")
    assert sides["runs"] == ["r@10", "r@30"]
    assert sides["tasks"] == [['val: {"q": "same"}', 0.5, 0.5], ['val: {"q": "worse"}', 0.25, 0.5]]
    assert sides["totals"]["rollouts failed"] == [3, 3]
