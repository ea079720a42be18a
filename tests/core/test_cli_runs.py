"""``agl run --resume``: going on with runs, from the command line."""

import asyncio
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from tests.interpreter import started
from tests.run_project import AGENT, LEARN, begin, refuses, stored, succeeds
from tests.waiting import free_port

from agl_runs.local_runs import runs_here, runs_in
from agl_runs.records import RunStart
from agl_runs.store import begin_run
from agl_sqlite import SqliteLightningStore

pytestmark = pytest.mark.usefixtures("project")


def test_run_that_stops_says_how_it_goes_on_and_does(agl, project):
    result = agl("run", "agl.yaml", "algorithm.stop_after=1")
    run, folder, *said = result.err.splitlines()
    run_id = run.removeprefix("run: ")
    assert folder == f"run folder: agl-runs/{run_id}"
    how = f"to go on: agl run --resume {run_id}"
    assert said[-2:] == [f"run {run_id} stopped: told to stop", how]
    result = succeeds(agl, "run", "--resume", run_id, "algorithm.stop_after=null", "--force")
    assert "to go on" not in result.err
    record, metrics = stored(run_id), Path("agl-runs") / run_id / "metrics.jsonl"
    assert (record["status"], len(record["generations"])) == ("finished", 2)
    assert record["generations"][1]["differences"] == ["algorithm.stop_after: 1 then, None now"]
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert steps == [1, 2]
    assert len(list(Path("agl-runs").iterdir())) == 1
    # The next one goes on with what it has now.
    written = yaml.safe_load((Path("agl-runs") / run_id / "config.yaml").read_text())
    assert written["algorithm"]["stop_after"] is None


def test_newest_run_that_has_not_come_to_its_end_goes_on(agl):
    stopped = begin(agl, "algorithm.stop_after=1")
    begin(agl)
    folder = Path("agl-runs/running")
    folder.mkdir()
    store = SqliteLightningStore(folder / "store.db")
    start = RunStart(run_id="running", algorithm="learn", host="elsewhere", pid=1)
    asyncio.run(begin_run(store, start))
    asyncio.run(store.close())
    result = succeeds(agl, "run", "--resume")
    assert f"run: {stopped}\n" in result.err


def test_force_is_for_a_run_that_goes_on(agl):
    said = "agl: --force is for a run that goes on; add --resume\n"
    assert agl("run", "agl.yaml", "--force") == (2, "", said)


def test_where_no_run_can_go_on_those_that_could_be_named_are(agl):
    words = "there is no run under agl-runs to go on with; begin one with agl run FILE\n"
    refuses(agl, words, "run", "--resume")
    Path("agl-runs/a-broken-one").mkdir(parents=True)
    Path("agl-runs/a-broken-one/store.db").write_text("no store" * 1000)
    words = "or name one that is running or cannot be read: a-broken-one\n"
    refuses(agl, words, "run", "--resume")


@pytest.mark.parametrize(
    ("arguments", "which"),
    [
        (("--resume", "agl.yaml", "algorithm.steps=3"), 1),
        (("--resume", "algorithm.steps=3", "agl.yaml"), 1),
        (("agl.yaml", "--resume", "algorithm.steps=3"), 1),
        (("agl.yaml", "algorithm.steps=3", "--resume"), 1),
        *((("--resume", name), 0) for name in ("ID", "END OF IT", "FOLDER", "FILE")),
    ],
)
def test_run_goes_on_that_is_named_and_else_the_newest(agl, arguments, which):
    runs = first, _ = begin(agl), begin(agl)
    names = {"ID": first, "END OF IT": first[-4:], "FOLDER": f"agl-runs/{first}"}
    names["FILE"] = f"agl-runs/{first}/store.db"
    result = succeeds(agl, "run", *(names.get(word, word) for word in arguments))
    assert f"run: {runs[which]}\n" in result.err
    assert ("algorithm.steps: 2 then, 3 now" in result.err) == which
    assert stored(runs[which])["config"]["algorithm"]["steps"] == 2 + which


@pytest.mark.parametrize("store", [(), ("store={type: sqlite, path: kept.db}",)])
def test_job_that_is_started_again_begins_the_run_or_goes_on_with_it(agl, store):
    job = ("run", "agl.yaml", "run_dir=job", *store, "--resume")
    begin(agl, *store)  # a neighbour, in the same store
    assert "there is no run in 'job' yet" in agl(*job, "algorithm.stop_after=1").err
    record = Path("kept.db" if store else "job/store.db")
    (run,) = [one for one in runs_in(record) if one.folder == str(Path("job").absolute())]
    # The next start was on a machine that died, so nobody noted its end.
    same = run.model_dump(include={"run_id", "algorithm", "folder", "config", "datasets"})
    opened = SqliteLightningStore(record)
    asyncio.run(begin_run(opened, RunStart(**same, code=run.code, host="elsewhere", pid=1)))
    asyncio.run(opened.close())
    result = succeeds(agl, *job, "algorithm.stop_after=1", "--force")
    assert f"run: {run.run_id}\n" in result.err
    ended = runs_in(record)
    assert {len(one.generations) for one in ended} == ({1, 3} if store else {3})


def test_run_is_found_in_the_store_that_the_file_names(agl):
    store = "store={type: sqlite, path: kept.db}"
    run_id = begin(agl, store)
    assert agl("run", "agl.yaml", "--resume", run_id).code == 2
    succeeds(agl, "run", "agl.yaml", store, "--resume", run_id)
    (run,) = runs_in(Path("kept.db"))
    assert (run.run_id, len(run.generations)) == (run_id, 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"options": ["algorithm.rate=0.2"]}, "algorithm.rate: 0.1 then, 0.2 now"),
        ({"tasks.jsonl": '{"x": 1}\n'}, "train tasks: 2 tasks .* then, 1 tasks .* now"),
        ({"runs_agent.py": f"{AGENT}\nmore = 1\n"}, "the agent's source file: .* then, .* now"),
        ({"runs_learn.py": f"{LEARN}\nloss = 1\n"}, "the algorithm's source file: .* then, .* now"),
    ],
    ids=["option", "data", "agent", "algorithm"],
)
def test_run_that_would_be_another_is_refused_and_forced(agl, project, change, words):
    run_id = begin(agl)
    options = change.pop("options", [])
    for name, text in change.items():
        (project / name).write_text(text)
    before = (project / "agl-runs" / run_id / "config.yaml").read_text()
    result = agl("run", "--resume", run_id, *options)
    assert result.code == 2
    said = f"cannot resume run '{run_id}', as its results would change: {words}.*--force"
    assert re.search(said, result.err)
    assert (project / "agl-runs" / run_id / "config.yaml").read_text() == before
    assert len(stored(run_id)["generations"]) == 1
    succeeds(agl, "run", "--resume", run_id, *options, "--force")
    (difference,) = stored(run_id)["generations"][1]["differences"]
    assert re.fullmatch(words, difference)


def test_versions_of_what_models_run_on_are_recorded_and_compared(agl, project, monkeypatch):
    def install(version: str) -> None:
        about = project / "site" / "torch.dist-info" / "METADATA"
        about.parent.mkdir(parents=True, exist_ok=True)
        about.write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")

    monkeypatch.syspath_prepend(project / "site")
    install("97.8.0")
    run_id = begin(agl)
    assert stored(run_id)["code"]["versions"]["torch"] == "97.8.0"
    install("97.8.1")
    result = agl("run", "--resume", run_id)
    assert (result.code, "torch: version 97.8.0 then, 97.8.1 now" in result.err) == (0, True)
    install("97.9.0")
    refuses(agl, "torch: version 97.8.1 then, 97.9.0 now", "run", "--resume", run_id)


def test_configuration_with_a_hidden_secret_asks_for_the_file(agl):
    key = "algorithm.api_key=sk-0123456789abcdef0123"
    run_id = begin(agl, key)
    assert stored(run_id)["config"]["algorithm"]["api_key"] == "***"
    refuses(agl, "algorithm.api_key was hidden when it was written", "run", "--resume", run_id)
    succeeds(agl, "run", "agl.yaml", key, "--resume", run_id)


def rollouts_in(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "store.db")) as connection:
        return connection.execute("SELECT count(*) FROM rollout").fetchone()[0]


def test_copy_of_a_run_goes_on_as_itself_where_its_folder_is_named(agl, project):
    run_id = begin(agl, "algorithm.stop_after=1")
    folder, copy = project / "agl-runs" / run_id, project / "agl-runs/backup"
    shutil.copytree(folder, copy)
    refuses(agl, f"run {run_id!r} is here several times, in {project}", "run", "--resume", run_id)
    succeeds(agl, "run", "--resume", str(copy), "algorithm.stop_after=null", "--force")
    assert (rollouts_in(folder), rollouts_in(copy)) == (2, 4)
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 1
    (run,) = runs_in(copy / "store.db")
    assert (run.folder, run.status) == (str(copy), "finished")
    assert len((copy / "metrics.jsonl").read_text().splitlines()) == 2
    assert stored(str(folder))["status"] == "stopped"


@pytest.mark.parametrize("is_moved", [True, False], ids=["moved", "copied"])
@pytest.mark.parametrize("how", [["--resume"], ["--resume", "RUN"], ["agl.yaml", "--resume"]])
def test_moved_or_copied_project_goes_on_where_it_is(agl, project, is_moved, how, monkeypatch):
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
    succeeds(agl, "run", *names, "algorithm.steps=2")
    assert rollouts_in(second / "agl-runs" / run_id) == 4
    assert Path(sys.modules["runs_agent"].__file__ or "").parent == second
    assert stored(run_id)["folder"] == str(second / "agl-runs" / run_id)
    assert is_moved == (not first.exists())
    if not is_moved:
        assert rollouts_in(first / "agl-runs" / run_id) == 2


def test_run_of_a_file_goes_on_from_python_and_back(agl):
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

    said = r"change: algorithm.rate: 0.1 then, 0.2 now."
    with pytest.raises(package.errors.ConfigError, match=said):
        go_on(0.2)
    go_on(0.1)
    assert agl("run", "--resume", run_id, "algorithm.steps=3").code == 0
    record = stored(run_id)
    starts = [each["differences"] for each in record["generations"]]
    assert (record["status"], starts) == ("finished", [[], [], ["algorithm.steps: 2 then, 3 now"]])


def test_run_goes_on_with_another_strategy(agl, project):
    run_id = begin(agl, "algorithm.stop_after=1", "strategy={type: shm, main_thread: algorithm}")
    port = free_port()
    others = ("algorithm.stop_after=null", "--force")
    succeeds(agl, "run", "--resume", "strategy.type=cs", f"strategy.server_port={port}", *others)
    (_, start) = stored(run_id)["generations"]
    changed = ["strategy.type: shm then, cs now", "algorithm.stop_after: 1 then, None now"]
    assert start["differences"] == changed
    refuses(agl, "config.yaml: strategy.nope: unknown", "run", "--resume", "strategy.nope=1")


def test_run_that_is_refused_leaves_no_folder(agl, project):
    (project / "own").mkdir()
    (project / "own/run.json").write_text('{"run": "other", "generation": 2}')
    own = "run_dir = 'own'\n\n    async def run("
    (project / "runs_learn.py").write_text(LEARN.replace("async def run(", own))
    words = "or agl run --resume other. One that begins from a checkpoint of it"
    refuses(agl, words, "run", "agl.yaml")
    assert list((project / "agl-runs").iterdir()) == []


def test_run_of_python_is_not_gone_on_with_without_a_file(agl):
    run_id = begin(agl)
    Path("agl-runs", run_id, "config.yaml").unlink()
    words = f"begun from Python. Go on in the script that began it, with Trainer(run={run_id!r}"
    refuses(agl, words, "run", "--resume")


def test_run_goes_on_where_its_paths_are_meant(agl, project, monkeypatch):
    looks = "assert os.path.exists('weights'); self.steps,"
    (project / "runs_learn.py").write_text(LEARN.replace("self.steps,", looks, 1))
    (project / "weights").touch()
    run_id = begin(agl)
    (project / "other").mkdir()
    monkeypatch.chdir(project / "other")
    sys.modules.pop("runs_learn")
    result = succeeds(agl, "run", "--resume", str(project / "agl-runs" / run_id))
    assert f"working directory: {project}\n" in result.err


@pytest.mark.parametrize("lines", [1, 4])
def test_run_goes_on_when_the_reader_of_its_log_is_gone(project, lines):
    words = ["-c", "from agl.cli import main; main()", "run", "agl.yaml", "algorithm.steps=4"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(project), *sys.path])}
    pipes = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE, "env": environment}
    with (project / "out").open("w") as out:
        process = started(*words, stdout=out, **pipes)
        for _ in range(lines):
            process.stderr.readline()
        process.stderr.close()
        assert process.wait(60) == 0
    assert "8 succeeded" in (project / "out").read_text()
    [run] = runs_here()
    assert run.status == "finished"
    assert len(Path(run.folder or "", "metrics.jsonl").read_text().splitlines()) == 4


AWAY = """
import agl

class Away(agl.InMemoryLightningStore):
    def __init__(self):
        raise agl.errors.StoreAwayError("nobody answers")
"""


@pytest.mark.parametrize("how", [(), ("--resume",)], ids=["begins", "goes on"])
def test_store_that_is_away_is_no_wrong_request(agl, project, how):
    (project / "runs_away.py").write_text(AWAY)
    result = agl("run", "agl.yaml", "store=runs_away:Away", "run_dir=there", *how)
    assert (result.code, result.err.splitlines()[-1]) == (1, "agl: agl.yaml: store: nobody answers")
