"""``agl run --resume`` and ``agl runs``: runs from the command line."""

import asyncio
import json
import logging
import os
import platform
import random
import re
import shutil
import socket
import sqlite3
import sys
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from agl.cli import main
from agl.plugins.registry import components
from agl.store.sqlite import SqliteLightningStore
from agl.types import RunStart

AGENT = """
import agl

@agl.rollout
def agent(task: dict) -> float:
    return float(task["x"])
"""
LEARN = """
import json, os
import agl

class Learn(agl.Algorithm):
    '''Runs its tasks in each step, and stops after so many of them.'''
    def __init__(self, steps: int = 2, stop_after: int | None = None, rate: float = 0.1,
                 api_key: str | None = None):
        self.steps, self.stop_after, self.rate, self.api_key = steps, stop_after, rate, api_key

    async def run(self, train_dataset=None, val_dataset=None):
        store, folder = self.get_store(), self.get_run_folder()
        done = folder / "metrics.jsonl"
        first = len(done.read_text().splitlines()) + 1 if done.exists() else 1
        run_id, generation = self.get_run()
        (folder / "run.json").write_text(json.dumps({"run": run_id, "generation": generation}))
        for step in range(first, self.steps + 1):
            tasks = [agl.EnqueueRolloutRequest(input=x, mode="train") for x in train_dataset]
            rollouts = await store.enqueue_many_rollouts(tasks)
            await store.wait_for_rollouts(rollout_ids=[one.rollout_id for one in rollouts])
            with done.open("a") as file:
                print(json.dumps({"step": step, "reward/mean": step / 4}), file=file)
            if step == self.stop_after:
                raise agl.errors.StoppedError("told to stop")
"""
CONFIG = """
agent: runs_agent:agent
train: tasks.jsonl
algorithm: {type: "runs_learn:Learn"}
strategy: shm
"""


class Result(NamedTuple):
    code: object
    out: str
    err: str


Agl = Callable[..., Result]


@pytest.fixture
def agl(capsys: pytest.CaptureFixture[str]) -> Agl:
    def call(*arguments: str) -> Result:
        with pytest.raises(SystemExit) as caught:
            main(list(arguments))
        captured = capsys.readouterr()
        return Result(caught.value.code, captured.out, captured.err)

    return call


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    (tmp_path / "runs_agent.py").write_text(AGENT)
    (tmp_path / "runs_learn.py").write_text(LEARN)
    (tmp_path / "tasks.jsonl").write_text('{"x": 1}\n{"x": 0.5}\n')
    (tmp_path / "agl.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for module in ("runs_agent", "runs_learn"):
        sys.modules.pop(module, None)
    for name in {"agl", *(c.target.partition(":")[0].split(".")[0] for c in components())}:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)


def begin(agl: Agl, *overrides: str) -> str:
    """Run what the file says; the id of the run."""
    result = agl("run", "agl.yaml", *overrides)
    assert (result.code == 1) == any("stop_after=1" in each for each in overrides), result.err
    found = re.search(r"^run: (\S+)$", result.err, re.MULTILINE)
    assert found is not None
    return found[1]


def shown(agl: Agl, run: str) -> Any:
    return json.loads(agl("runs", "show", run, "--json").out)


def test_looking_at_runs_leaves_no_file_behind(agl: Agl, project: Path) -> None:
    run_id = begin(agl)
    before = sorted(project.rglob("*"))
    assert agl("runs").code == 0
    assert shown(agl, run_id)["status"] == "finished"
    assert sorted(project.rglob("*")) == before


def test_run_that_stops_says_how_it_goes_on_and_does(agl: Agl, project: Path) -> None:
    result = agl("run", "agl.yaml", "algorithm.stop_after=1")
    run, folder, *said = result.err.splitlines()
    run_id = run.removeprefix("run: ")
    assert folder == f"run folder: agl-runs/{run_id}"
    assert said[-2:] == [
        f"run {run_id} stopped: told to stop",
        f"to go on: agl run --resume {run_id}",
    ]
    result = agl("run", "--resume", run_id, "algorithm.stop_after=null", "--force")
    assert result.code == 0, result.err
    assert "to go on" not in result.err
    record, metrics = shown(agl, run_id), Path("agl-runs") / run_id / "metrics.jsonl"
    assert (record["status"], len(record["generations"])) == ("finished", 2)
    assert record["generations"][1]["differences"] == ["algorithm.stop_after: 1 then, None now"]
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert steps == [1, 2]
    assert len(list(Path("agl-runs").iterdir())) == 1
    # The next one goes on with what it has now.
    written = yaml.safe_load((Path("agl-runs") / run_id / "config.yaml").read_text())
    assert written["algorithm"]["stop_after"] is None


def test_newest_run_goes_on_where_none_is_named(agl: Agl) -> None:
    begin(agl, "algorithm.steps=1")
    second = begin(agl, "algorithm.steps=1")
    result = agl("run", "agl.yaml", "--resume", "algorithm.steps=2")
    assert result.code == 0, result.err
    assert f"run: {second}\n" in result.err
    assert "algorithm.steps: 1 then, 2 now" in result.err


def test_newest_run_that_has_not_come_to_its_end_goes_on(agl: Agl) -> None:
    stopped = begin(agl, "algorithm.stop_after=1")
    begin(agl)
    folder = Path("agl-runs/running")
    folder.mkdir()
    store = SqliteLightningStore(folder / "store.db")
    start = RunStart(run_id="running", algorithm="learn", host="elsewhere", pid=1)
    asyncio.run(store.begin_run(start))
    asyncio.run(store.close())
    result = agl("run", "--resume")
    assert result.code == 0, result.err
    assert f"run: {stopped}\n" in result.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--resume", "agl.yaml", "algorithm.steps=3"),
        ("--resume", "algorithm.steps=3", "agl.yaml"),
        ("agl.yaml", "--resume", "algorithm.steps=3"),
        ("agl.yaml", "algorithm.steps=3", "--resume"),
    ],
)
def test_run_goes_on_in_whatever_order_file_and_overrides_stand(
    agl: Agl, arguments: tuple[str, ...]
) -> None:
    run_id = begin(agl)
    result = agl("run", *arguments)
    assert result.code == 0, result.err
    assert f"run: {run_id}\n" in result.err
    assert shown(agl, run_id)["config"]["algorithm"]["steps"] == 3


def test_run_in_its_run_dir_goes_on_by_itself_and_not_as_another(agl: Agl) -> None:
    begin(agl, "run_dir=out")
    result = agl("run", "agl.yaml", "run_dir=out", "algorithm.rate=0.7")
    assert (result.code, "algorithm.rate: 0.1 then, 0.7 now" in result.err) == (2, True)
    result = agl("run", "agl.yaml", "run_dir=out", "algorithm.steps=3")
    assert result.code == 0, result.err
    result = agl("run", "agl.yaml", "run_dir=out", "algorithm.rate=0.7", "--force")
    assert result.code == 0, result.err


def test_force_is_for_a_run_that_goes_on(agl: Agl) -> None:
    result = agl("run", "agl.yaml", "--force")
    assert result.code == 2
    assert result.err == "agl: --force is for a run that goes on; add --resume\n"


def test_damaged_store_is_named_and_stands_in_no_other_run_s_way(agl: Agl) -> None:
    stopped = begin(agl, "algorithm.stop_after=1")
    other = Path("agl-runs/a-broken-one")
    other.mkdir()
    (other / "store.db").write_bytes(random.Random(1).randbytes(9000))
    rows = json.loads(agl("runs", "--json").out)
    assert [row["run"] for row in rows] == [stopped, "a-broken-one"]
    words = r"a-broken-one: agl-runs.a-broken-one.store\.db: its runs cannot be read: file is not"
    assert re.search(words, agl("runs").err)
    assert agl("runs", "compare", stopped, stopped).code == 0
    result = agl("run", "--resume")
    assert result.code == 0, result.err
    assert f"run: {stopped}\n" in result.err
    result = agl("run", "agl.yaml", "--resume", "a-broken-one")
    assert (result.code, "store.db" in result.err) == (2, True)


def test_where_no_run_can_go_on_those_that_could_be_named_are(agl: Agl) -> None:
    result = agl("run", "--resume")
    assert (result.code, "; begin one with agl run FILE\n" in result.err) == (2, True)
    Path("agl-runs/a-broken-one").mkdir(parents=True)
    Path("agl-runs/a-broken-one/store.db").write_text("no store" * 1000)
    words = "or name one that is running or cannot be read: a-broken-one\n"
    assert words in agl("run", "--resume").err


@pytest.mark.parametrize("name", ["id", "end of the id", "folder"])
def test_run_is_named_by_its_id_a_part_of_it_or_its_folder(agl: Agl, name: str) -> None:
    first = begin(agl)
    begin(agl)
    names = {"id": first, "end of the id": first[-4:], "folder": f"agl-runs/{first}"}
    result = agl("run", "--resume", names[name])
    assert result.code == 0, result.err
    assert f"run: {first}\n" in result.err


def test_run_goes_on_from_another_working_directory(
    agl: Agl, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = begin(agl)
    (project / "other").mkdir()
    monkeypatch.chdir(project / "other")
    result = agl("run", "--resume", f"../agl-runs/{run_id}")
    assert result.code == 0, result.err
    assert Path.cwd() == project  # as the run had it
    assert len(json.loads(agl("runs", "--path", f"agl-runs/{run_id}", "--json").out)) == 1


def test_run_is_found_in_the_store_that_the_file_names(agl: Agl) -> None:
    store = "store={type: sqlite, path: kept.db}"
    run_id = begin(agl, store)
    assert agl("run", "agl.yaml", "--resume", run_id).code == 2
    result = agl("run", "agl.yaml", store, "--resume", run_id)
    assert result.code == 0, result.err
    (row,) = json.loads(agl("runs", "--path", "kept.db", "--json").out)
    assert (row["run"], row["starts"]) == (run_id, 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"options": ["algorithm.rate=0.2"]}, "algorithm.rate: 0.1 then, 0.2 now"),
        ({"tasks.jsonl": '{"x": 1}\n'}, "train tasks: 2 tasks .* then, 1 tasks .* now"),
        ({"runs_agent.py": f"{AGENT}\n# more\n"}, "the agent's source file: .* then, .* now"),
        ({"options": ["algorithm.steps=1"]}, "algorithm.steps: 2 then, 1 now"),
    ],
    ids=["option", "data", "agent", "fewer steps"],
)
def test_run_that_would_be_another_is_refused_and_forced(
    agl: Agl, project: Path, change: dict[str, Any], words: str
) -> None:
    run_id = begin(agl)
    options = change.pop("options", [])
    for name, text in change.items():
        (project / name).write_text(text)
    before = (project / "agl-runs" / run_id / "config.yaml").read_text()
    result = agl("run", "--resume", run_id, *options)
    assert result.code == 2
    assert re.search(f"run '{run_id}' would go on as what it was not: {words}.*--force", result.err)
    assert (project / "agl-runs" / run_id / "config.yaml").read_text() == before
    assert len(shown(agl, run_id)["generations"]) == 1
    result = agl("run", "--resume", run_id, *options, "--force")
    assert result.code == 0, result.err
    (difference,) = shown(agl, run_id)["generations"][1]["differences"]
    assert re.fullmatch(words, difference)


def test_other_versions_are_named_and_patches_are_let_through(
    agl: Agl, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = begin(agl)
    monkeypatch.setattr("agl.runs.description.__version__", "0.1.9")
    result = agl("run", "--resume", run_id)
    assert result.code == 0, result.err
    assert "agl-core: version 0.1.0 then, 0.1.9 now" in result.err
    monkeypatch.setattr("agl.runs.description.__version__", "0.2.0")
    result = agl("run", "--resume", run_id)
    assert result.code == 2
    assert "agl-core: version 0.1.9 then, 0.2.0 now" in result.err


def test_versions_of_what_models_run_on_are_recorded_and_compared(
    agl: Agl, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def install(version: str) -> None:
        about = project / "site" / "torch.dist-info" / "METADATA"
        about.parent.mkdir(parents=True, exist_ok=True)
        about.write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")

    monkeypatch.syspath_prepend(project / "site")
    install("97.8.0")
    run_id = begin(agl)
    assert shown(agl, run_id)["code"]["versions"]["torch"] == "97.8.0"
    install("97.8.1")
    result = agl("run", "--resume", run_id)
    assert (result.code, "torch: version 97.8.0 then, 97.8.1 now" in result.err) == (0, True)
    install("97.9.0")
    result = agl("run", "--resume", run_id)
    assert (result.code, "torch: version 97.8.1 then, 97.9.0 now" in result.err) == (2, True)


def test_run_of_an_older_store_says_so_and_goes_on(agl: Agl, project: Path) -> None:
    run_id = begin(agl)
    file = project / "agl-runs" / run_id / "store.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript("DROP TABLE run; PRAGMA user_version=4;")
    (row,) = json.loads(agl("runs", "--json").out)
    assert (row["run"], row["state"], row["starts"]) == (run_id, "stopped", None)
    assert "of an older agl (schema 4)" in agl("runs").err
    result = agl("run", "agl.yaml", "--resume", run_id)
    assert result.code == 0, result.err
    assert f"nothing is known of what run {run_id} was begun with" in " ".join(result.err.split())
    assert [each["number"] for each in shown(agl, run_id)["generations"]] == [2]


def test_configuration_with_a_hidden_secret_asks_for_the_file(agl: Agl) -> None:
    run_id = begin(agl, "algorithm.api_key=sk-0123456789abcdef0123")
    assert shown(agl, run_id)["config"]["algorithm"]["api_key"] == "***"
    result = agl("run", "--resume", run_id)
    assert result.code == 2
    assert "algorithm.api_key was hidden when it was written" in result.err
    result = agl("run", "agl.yaml", "algorithm.api_key=sk-0123456789abcdef0123", "--resume", run_id)
    assert result.code == 0, result.err


def test_runs_are_listed(agl: Agl, project: Path) -> None:
    assert agl("runs").code == 0
    first = begin(agl, "algorithm.stop_after=1")
    second = begin(agl)
    rows = json.loads(agl("runs", "--json").out)
    assert [(row["run"], row["state"], row["starts"]) for row in rows] == [
        (first, "stopped", 1),
        (second, "finished", 1),
    ]
    assert [(row["algorithm"], row["step"], row["reward"]) for row in rows] == [
        ("learn", 1, 0.25),
        ("learn", 2, 0.5),
    ]
    assert rows[0]["folder"] == str(project / "agl-runs" / first)
    assert first in agl("runs").out
    text = agl("runs", "show", second).out
    assert "algorithm.rate" in text
    assert "agl-core" in text
    result = agl("runs", "show", "2")
    assert (result.code, "is the beginning of several runs" in result.err) == (2, True)
    result = agl("runs", "show", "nope")
    assert (result.code, f"the newest are: {first}, {second}" in result.err) == (2, True)


def test_runs_are_compared_task_by_task(agl: Agl, project: Path) -> None:
    first = begin(agl, "algorithm.steps=1")
    (project / "tasks.jsonl").write_text('{"x": 1}\n{"x": 3}\n')
    second = begin(agl, "algorithm.rate=0.5")
    found = json.loads(agl("runs", "compare", first, second, "--json").out)
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


def test_runs_are_compared_while_their_stores_are_in_use(agl: Agl) -> None:
    run_id = begin(agl)
    file = Path("agl-runs") / run_id / "store.db"
    store = SqliteLightningStore(file)  # as the run itself would have it
    try:
        result = agl("runs", "compare", run_id, run_id, "--json")
    finally:
        asyncio.run(store.close())
    assert result.code == 0, result.err
    assert json.loads(result.out)["totals"]["rollouts succeeded"] == [4, 4]


def test_comparing_leaves_an_older_store_as_it_is(agl: Agl) -> None:
    run_id = begin(agl)
    file = Path("agl-runs") / run_id / "store.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript("DROP TABLE run; PRAGMA user_version=4;")
    before = file.read_bytes()
    assert agl("runs", "compare", run_id, run_id).code == 0
    assert file.read_bytes() == before


def test_run_is_deleted_with_its_folder_when_asked(agl: Agl, project: Path) -> None:
    first, second = begin(agl), begin(agl)
    result = agl("runs", "delete", first, "--yes", "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out) == {
        "run": first,
        "resources": 0,
        "rollouts": 4,
        "attempts": 4,
        "ledger_parts": 0,
        "spans": json.loads(result.out)["spans"],
    }
    assert (project / "agl-runs" / first / "store.db").is_file()
    assert agl("runs", "delete", second, "--yes", "--folder").code == 0
    assert not (project / "agl-runs" / second).exists()
    assert json.loads(agl("runs", "--json").out) == []


def test_run_is_not_deleted_unless_its_user_agrees(
    agl: Agl, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = begin(agl)
    asked: list[str] = []

    def confirm(question: str, **_: Any) -> bool:
        asked.append(question)
        return False

    monkeypatch.setattr("click.confirm", confirm)
    assert agl("runs", "delete", run_id).code == 1
    assert f"Delete run {run_id} with 0 resources, 4 rollouts, 4 attempts" in asked[0]
    assert len(json.loads(agl("runs", "--json").out)) == 1


def test_run_of_a_machine_that_is_gone_is_deleted_by_force(agl: Agl, project: Path) -> None:
    store = SqliteLightningStore("kept.db")
    for run_id, host, pid in (("there", "gone", 1), ("here", platform.node(), os.getpid())):
        start = RunStart(run_id=run_id, algorithm="toy", host=host, pid=pid)
        asyncio.run(store.begin_run(start))
    asyncio.run(store.close())
    delete = ("runs", "--path", "kept.db", "delete", "--yes")
    result = agl(*delete, "there")
    words = "is running (process 1 on gone); stop it first; if that machine is gone, delete it with"
    assert (result.code, words in result.err) == (2, True)
    assert agl(*delete, "there", "--force").code == 0
    result = agl(*delete, "here", "--force")
    assert (result.code, "stop it first\n" in result.err) == (2, True)
    rows = json.loads(agl("runs", "--path", "kept.db", "--json").out)
    assert [row["run"] for row in rows] == ["here"]


def test_folder_that_holds_more_than_the_run_is_not_removed(agl: Agl, project: Path) -> None:
    run_id = begin(agl, "run_dir=.")
    result = agl("runs", "--path", "store.db", "delete", run_id, "--yes", "--folder")
    assert result.code == 2
    assert "without --folder" in result.err
    assert (project / "tasks.jsonl").is_file()


def rollouts_in(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "store.db")) as connection:
        return connection.execute("SELECT count(*) FROM rollout").fetchone()[0]


@pytest.mark.parametrize("name", ["the id", "another"])
def test_copy_of_a_run_is_deleted_with_its_own_folder(agl: Agl, project: Path, name: str) -> None:
    run_id = begin(agl)
    folder, copy = (
        project / "agl-runs" / run_id,
        project / "kept" / {"the id": run_id}.get(name, name),
    )
    shutil.copytree(folder, copy)
    result = agl("runs", "--path", str(copy / "store.db"), "delete", run_id, "--folder", "--yes")
    assert result.code == 0, result.err
    assert (folder.exists(), copy.exists()) == (True, False)


def test_copy_of_a_run_goes_on_as_itself(agl: Agl, project: Path) -> None:
    run_id = begin(agl, "algorithm.stop_after=1")
    folder, copy = project / "agl-runs" / run_id, project / "copy"
    shutil.copytree(folder, copy)
    result = agl("run", "--resume", "copy", "algorithm.stop_after=null", "--force")
    assert result.code == 0, result.err
    assert (rollouts_in(folder), rollouts_in(copy)) == (2, 4)
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 1
    (row,) = json.loads(agl("runs", "--path", "copy/store.db", "--json").out)
    assert (row["folder"], row["state"], row["step"]) == (str(copy), "finished", 2)
    assert shown(agl, run_id)["status"] == "stopped"


@pytest.mark.parametrize("is_moved", [True, False], ids=["moved", "copied"])
@pytest.mark.parametrize("how", [["--resume"], ["--resume", "RUN"], ["agl.yaml", "--resume"]])
def test_project_that_was_moved_or_copied_goes_on_where_it_is(
    agl: Agl, project: Path, is_moved: bool, how: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = project / "first", project / "second"
    first.mkdir()
    for name in ("runs_agent.py", "runs_learn.py", "tasks.jsonl", "agl.yaml"):
        (project / name).rename(first / name)
    monkeypatch.chdir(first)
    run_id = begin(agl, "algorithm.steps=1")
    shutil.copytree(first, second)
    if is_moved:
        shutil.rmtree(first)
    monkeypatch.chdir(second)
    for module in ("runs_agent", "runs_learn"):
        sys.modules.pop(module, None)
    names = [run_id if word == "RUN" else word for word in how]
    result = agl("run", *names, "algorithm.steps=2")
    assert result.code == 0, result.err
    assert rollouts_in(second / "agl-runs" / run_id) == 4
    assert Path(sys.modules["runs_agent"].__file__ or "").parent == second
    assert shown(agl, run_id)["folder"] == str(second / "agl-runs" / run_id)
    assert is_moved == (not first.exists())
    if not is_moved:
        assert rollouts_in(first / "agl-runs" / run_id) == 2


def test_run_of_a_file_goes_on_from_python_and_back(agl: Agl) -> None:
    import agl as package

    run_id = begin(agl, "algorithm.stop_after=1")
    agent, learn = sys.modules["runs_agent"].agent, sys.modules["runs_learn"].Learn
    tasks = [{"x": 1}, {"x": 0.5}]

    def go_on(rate: float) -> None:
        learned = learn(stop_after=1, rate=rate)
        trainer = package.Trainer(algorithm=learned, run=run_id, resume=True, strategy="shm")
        try:
            trainer.fit(agent, tasks)
        finally:
            asyncio.run(trainer.store.close())

    with pytest.raises(
        package.errors.ConfigError, match=r"not: algorithm.rate: 0.1 then, 0.2 now."
    ):
        go_on(0.2)
    go_on(0.1)
    assert agl("run", "--resume", run_id, "algorithm.steps=3").code == 0
    record = shown(agl, run_id)
    starts = [each["differences"] for each in record["generations"]]
    assert (record["status"], starts) == ("finished", [[], [], ["algorithm.steps: 2 then, 3 now"]])


def test_run_goes_on_with_another_strategy(agl: Agl, project: Path) -> None:
    run_id = begin(agl, "algorithm.stop_after=1", "strategy={type: shm, main_thread: algorithm}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    others = ("algorithm.stop_after=null", "--force")
    result = agl("run", "--resume", "strategy.type=cs", f"strategy.server_port={port}", *others)
    assert result.code == 0, result.err
    (_, start) = shown(agl, run_id)["generations"]
    assert start["differences"] == [
        "strategy.type: shm then, cs now",
        "algorithm.stop_after: 1 then, None now",
    ]
    result = agl("run", "--resume", "strategy.nope=1")
    assert (result.code, "config.yaml: strategy.nope: unknown" in result.err) == (2, True)


def test_run_that_is_refused_leaves_no_folder(agl: Agl, project: Path) -> None:
    (project / "own").mkdir()
    (project / "own/run.json").write_text('{"run": "other", "generation": 2}')
    own = "run_dir = 'own'\n\n    async def run("
    (project / "runs_learn.py").write_text(LEARN.replace("async def run(", own))
    result = agl("run", "agl.yaml")
    assert result.code == 2
    assert "or agl run --resume other. One that begins from a checkpoint of it" in result.err
    assert list((project / "agl-runs").iterdir()) == []


def test_run_of_python_is_not_gone_on_with_without_a_file(agl: Agl) -> None:
    run_id = begin(agl)
    Path("agl-runs", run_id, "config.yaml").unlink()
    result = agl("run", "--resume")
    words = f"begun from Python. Go on in the script that began it, with Trainer(run={run_id!r}"
    assert (result.code, words in result.err) == (2, True)


def test_two_copies_of_a_run_are_told_apart_by_their_folders(agl: Agl, project: Path) -> None:
    run_id = begin(agl, "algorithm.steps=1")
    shutil.copytree(f"agl-runs/{run_id}", "agl-runs/backup")
    result = agl("run", "--resume", run_id, "algorithm.steps=2")
    assert result.code == 2
    assert f"run {run_id!r} is here several times, in {project}" in result.err
    assert agl("run", "--resume", "agl-runs/backup", "algorithm.steps=2").code == 0
    steps = [
        shown(agl, f"agl-runs/{name}")["config"]["algorithm"]["steps"]
        for name in (run_id, "backup")
    ]
    assert steps == [1, 2]


def test_run_goes_on_where_its_paths_are_meant(
    agl: Agl, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "runs_learn.py").write_text(
        LEARN.replace("self.steps,", "assert os.path.exists('weights'); self.steps,", 1)
    )
    (project / "weights").touch()
    run_id = begin(agl)
    (project / "other").mkdir()
    monkeypatch.chdir(project / "other")
    sys.modules.pop("runs_learn")
    result = agl("run", "--resume", str(project / "agl-runs" / run_id))
    assert result.code == 0, result.err
    assert f"working directory: {project}\n" in result.err
