"""The summary of a run, its page and its curve, of what can be read of its files."""

import asyncio
import html
import json
from pathlib import Path
from typing import Any

import pytest

import agl
from agl import Exclusion, Ledger, ModelCall
from agl.algorithm.run_result import RunResult
from agl.errors import AlgorithmError, StoreDiskError, StoreError
from agl.store.memory import InMemoryLightningStore
from agl_inspect.report.curve import svg_curve, text_curve
from agl_inspect.report.page import end_of_run, page
from agl_inspect.report.text import next_commands, summary_text, times_text
from agl_inspect.runs.facts import HeldOut, RunFacts, run_facts
from agl_learning.reports.diagnostics import Finding
from agl_learning.reports.report import Report
from agl_learning.reports.run_metrics import RunMetrics
from agl_learning.run.folder import begin_generation
from agl_records.ledger.ledger import save_ledger
from agl_runs.records import Run, RunStart
from agl_runs.result import known_of, result_of
from agl_runs.rollouts import RunStore
from agl_runs.store import begin_run, end_run

from .traces import ids_of

HOSTILE = "</pre><script>alert(1)</script>\x1b[31m<img src=x onerror=alert(1)>"


@agl.rollout
def agent(task: str) -> float:
    if task == "fails":
        raise KeyError(HOSTILE)
    return 0.5


def trainer_in(folder: Path | None, **options: Any) -> agl.Trainer:
    return agl.Trainer(strategy="shm", n_runners=1, run_dir=folder, **options)


def run(folder: Path) -> tuple[agl.RunResult, agl.LightningStore]:
    folder.mkdir()
    store = agl.SqliteLightningStore(folder / "store.db")
    return trainer_in(folder, store=store).dev(agent, ["works", "works", "fails"]), store


def test_result_of_a_run_says_what_came_of_it(tmp_path):
    result, _ = run(tmp_path / "run")
    assert (dict(result.rollouts), result.mean_reward) == ({"succeeded": 2, "failed": 1}, 0.5)
    [cause] = result.failures
    assert (cause.type, cause.number, result.trained) == ("KeyError", 1, None)
    assert "test_report.py:" in cause.place
    assert "2 succeeded, 1 failed, mean reward 0.5>" in repr(result)


def test_result_counts_no_other_run_of_its_store(store):
    for _ in range(2):
        result = trainer_in(None, store=store).dev(agent, ["works"])
        assert dict(result.rollouts) == {"succeeded": 1}


def test_report_is_written_whatever_the_log_leaves_out(tmp_path, caplog, capsys):
    with caplog.at_level("WARNING", "agl"):
        result = trainer_in(tmp_path / "run").dev(agent, ["works"])
    assert result.folder == tmp_path / "run"
    assert (tmp_path / "run/report.html").is_file()
    assert "1 succeeded" in result.summary
    assert "1 succeeded" not in capsys.readouterr().err


class Breaks(agl.Algorithm):
    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        store = self.get_store()
        rollout = await store.enqueue_rollout(train_dataset[0])
        await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
        raise RuntimeError("it broke")


def test_run_that_fails_has_a_result_and_a_report(tmp_path, caplog, capsys):
    trainer = trainer_in(tmp_path / "run", algorithm=Breaks())
    with caplog.at_level("INFO", "agl"), pytest.raises(AlgorithmError, match="it broke"):
        trainer.fit(agent, ["works"])
    assert (trainer.result.status, dict(trainer.result.rollouts)) == ("failed", {"succeeded": 1})
    assert "it broke" in (tmp_path / "run/report.html").read_text("utf-8")
    assert "it broke" in capsys.readouterr().err


class FullAtTheEnd(agl.InMemoryLightningStore):
    async def put_documents(self, documents: Any) -> None:
        if documents[0].body["status"] != "running":
            raise StoreDiskError("no space left")
        await super().put_documents(documents)


def test_run_whose_store_is_full_at_its_end_is_not_shown_as_running(tmp_path):
    result = trainer_in(tmp_path / "run", store=FullAtTheEnd()).dev(agent, ["works"])
    assert (result.status, result.record and result.record.status) == ("finished", "finished")
    assert "baseline, finished after" in result.summary
    assert "running" not in (tmp_path / "run/report.html").read_text("utf-8")


def test_next_commands_stay_with_their_run_when_a_newer_one_has_begun(here):
    (here / "agl-runs").mkdir()
    result, _ = run(here / "agl-runs/older")
    run(here / "agl-runs/newer")
    lines = result.summary.splitlines()
    [first] = [n for n, line in enumerate(lines) if line.startswith("next ")]
    assert [line[13:] for line in lines[first : first + 3]] == [
        f"agl show {result.failures[0].rollout_id} --path agl-runs/older",
        "agl rollouts --sort reward --path agl-runs/older",
        f"agl report {result.run_id}",
    ]


async def test_summary_of_an_earlier_start_is_not_that_of_the_run(store, tmp_path):
    begin_generation(tmp_path, run="r")
    said = {"rewards": [0.1], "calls": 3, "calls_trained": 3, "calls_excluded": {}}
    Report(agl.Baseline(), "toy", tmp_path, 1, 0, False).summary(said, 1)
    assert (await run_facts(store, result=known_of("r", tmp_path, None))).calls_trained == 3
    begin_generation(tmp_path)  # and that one has died, or is under way
    facts = await run_facts(store, result=known_of("r", tmp_path, None))
    assert (facts.calls_trained, facts.result.steps, facts.result.trained) == (0, [], None)


@pytest.mark.parametrize("is_summed_up", [True, False])
async def test_rollouts_of_a_step_that_did_not_end_are_said(store, tmp_path, is_summed_up):
    of_run = RunStore(store, "r", 1)
    ended = await of_run.start_rollout("x", metadata={"step": 1})
    await of_run.start_rollout("x", metadata={"step": 2})
    await store.start_rollout("of no run")
    ledger = Ledger()
    ledger.add_call(ModelCall(call_id="c", sequence_id=1, **ids_of(ended)))
    ledger.exclude(Exclusion(call_id="c", reason="no_token_ids", **ids_of(ended)))
    await save_ledger(store, ledger, [ended], step=1, algorithm="toy", run="r")
    begin_generation(tmp_path, run="r")
    if is_summed_up:
        said = {"calls": 1, "calls_trained": 0, "rollouts": 1}
        said["calls_excluded"] = {"no_token_ids": 1}
        Report(agl.Baseline(), "toy", tmp_path, 1, 0, False).summary(said, 1)
    facts = await run_facts(store, result=await result_of(store, "r", tmp_path, None))
    assert (facts.calls, facts.excluded, facts.uncounted) == (1, {"no_token_ids": 1}, 1)
    said = "uncounted 1 rollouts that no step has counted: 1 of step 2. See: agl rollouts r --step"
    assert said in " ".join(summary_text(facts, 80).split())


async def test_start_that_was_killed_counts_to_its_last_sign_of_life(store):
    for number in (1, 2):
        run = await begin_run(store, RunStart(run_id="r", algorithm="toy"))
        of_it = RunStore(store, "r", number)
        for _ in range(3):
            await of_it.start_rollout({"x": 1})
    run = await end_run(store, "r", 2, "finished")
    one, two = run.generations
    assert two.end_time is not None
    facts = await run_facts(store, run=run)
    of_first = (await store.query_rollouts())[:3]
    alive = of_first[-1].start_time - one.start_time
    assert alive > 0
    assert facts.seconds == pytest.approx(alive + two.end_time - two.start_time, abs=1e-3)
    assert facts.took_longer
    assert "finished after at least 0.0 s in 2 starts" in summary_text(facts, 80)


class WithoutLedger(agl.InMemoryLightningStore):
    async def query_documents(self, kind: str, **asked: Any) -> Any:
        if kind == "ledger":
            raise StoreError("the ledger cannot be read")
        return await super().query_documents(kind, **asked)


def test_a_ledger_that_cannot_be_read_does_not_lose_the_result(caplog, capsys):
    with caplog.at_level("INFO", "agl"):
        result = trainer_in(None, store=WithoutLedger()).dev(agent, ["works"])
    assert dict(result.rollouts) == {"succeeded": 1}
    assert "run_summary raised StoreError: the ledger cannot be read" in caplog.text
    assert "1 succeeded" in capsys.readouterr().err


async def test_page_shows_hostile_text_as_text(tmp_path):
    result, store = await asyncio.to_thread(run, tmp_path / "run")
    Finding("x", 1, HOSTILE, HOSTILE, HOSTILE).write(result.folder)
    facts = await run_facts(store, result=result)
    shown = page(facts)
    for word in ("<script", "<img", "\x1b", "http://", "https://"):
        assert word not in shown
    assert "&lt;script&gt;" in shown
    assert "default-src &#x27;none&#x27;" in shown or "default-src 'none'" in shown
    assert "\x1b" not in summary_text(facts, 80)
    assert "report.html" in await end_of_run(store, result)
    json.dumps(facts.as_json())


async def test_a_command_stays_on_one_line_however_long_it_is(tmp_path):
    result, store = await asyncio.to_thread(run, tmp_path / f"we ird {'x' * 60}")
    facts = await run_facts(store, result=result)
    lines = [line[13:] for line in summary_text(facts, 80).splitlines()]
    assert len(next_commands(facts)) == 3
    assert set(next_commands(facts)) <= set(lines)


@pytest.mark.parametrize("best", [10, 20])
def test_summary_names_the_newest_and_the_best_checkpoint_and_serves_both(tmp_path, best):
    pytest.importorskip("agl_torch")
    for step in (10, 20):
        (tmp_path / f"step-{step}").mkdir()
        (tmp_path / f"step-{step}" / "config.json").write_text("{}")
    best_at, newest = str(tmp_path / f"step-{best}"), str(tmp_path / "step-20")
    about = {"checkpoint": newest, "best_checkpoint": best_at, "best_reward": 0.875}
    facts = RunFacts(result=RunResult(), **about)
    lines = [line[13:] for line in summary_text(facts, 500).splitlines()]
    if best == 20:
        assert f"{newest} (the newest, and the best: held-out 0.875)" in lines
        assert [line for line in lines if "agl serve" in line] == [f"agl serve {newest}"]
    else:
        assert f"{best_at} (the best: held-out 0.875)" in lines
        assert f"{newest} (the newest)" in lines
        served = [line for line in lines if "agl serve" in line]
        assert served == [f"agl serve {best_at}", f"agl serve {newest}"]
    facts = RunFacts(result=RunResult(), **about, held_out=[HeldOut(0, 1.0, 4)])
    assert "held-out 0.875, less than the 1 before training)" in summary_text(facts, 500)


def test_a_share_of_time_is_shown_where_rollouts_and_updates_take_turns():
    seconds = {"step": 100, "rollouts": 80, "sampling": 60, "update": 15}
    line: dict[str, Any] = {"step": 1, **{f"time/{name}": n for name, n in seconds.items()}}
    in_turn, overlapping = RunMetrics([line]), RunMetrics([{**line, "time/idle": 5.0}])
    assert "75% of the time of steps" in times_text(RunFacts(result=RunResult(), metrics=in_turn))
    assert "%" not in times_text(RunFacts(result=RunResult(), metrics=overlapping))


def test_nothing_is_drawn_of_one_point():
    assert (text_curve([(1, 0.5)], [], 80), svg_curve([(1, 0.5)], [], title="x")) == ([], "")


GOOD = b'{"step": 1, "reward/mean": 0.5}\n', b'{"step": 2, "reward/mean": 0.75}\n'
BAD = [
    b'{"step": 3, "reward/mean": 0.\xff}\n',
    b"[" * 100_000 + b"\n",
    b'{"reward/mean": 0.5, "step": ' + b"9" * 5_000 + b"}\n",
    b"[1, 2]\n",
    b'{"reward/mean": 0.5}\n',
    b'{"step": "3", "reward/mean": 0.5}\n',
    b'{"step": true, "reward/mean": 0.5}\n',
    b'{"step": 1' + b"0" * 400 + b', "reward/mean": 0.5}\n',
    b'{"step": 3, "reward/mean": "high"}\n',
    b'{"step": 3, "reward/mean": 1' + b"0" * 400 + b"}\n",
    b'{"step": 3, "val/reward/mean": NaN}\n',
    b'{"step": 3, "entropy": Infinity}\n',
]


def run_of(folder: Path) -> Run:
    return Run(run_id="run-1", algorithm="grpo", create_time=1.0, folder=str(folder))


@pytest.mark.parametrize("bad", BAD, ids=range(len(BAD)))
async def test_line_or_value_that_cannot_be_read_is_left_out_and_said(tmp_path, bad):
    (tmp_path / "metrics.jsonl").write_bytes(GOOD[0] + bad + GOOD[1])
    metrics = RunMetrics.of(run_of(tmp_path))
    assert metrics.rewards == {1: 0.5, 2: 0.75}
    assert metrics.val_rewards == {}
    assert metrics.unread.startswith("metrics.jsonl: 1 left out that cannot be read, first line 2")
    known = RunResult(run_id="run-1", folder=tmp_path)
    facts = await run_facts(InMemoryLightningStore(), result=known)
    assert facts.curve[:2] == [(1, 0.5), (2, 0.75)]
    assert "unread       metrics.jsonl: 1 left out" in summary_text(facts, 200)
    assert metrics.unread.split(":")[-1] in html.unescape(page(facts))
    json.dumps(facts.as_json(), allow_nan=False)


def test_last_line_without_its_end_is_being_written(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(GOOD[0] + b'{"step": 2, "rew')
    metrics = RunMetrics.of(run_of(tmp_path))
    assert (metrics.step, metrics.unread) == (1, "")


def test_text_that_describes_a_step_is_no_metric(tmp_path):
    described = b'{"step": 1, "version": "base", "train/engine": "trl 1", "loss/last": 2}\n'
    (tmp_path / "metrics.jsonl").write_bytes(described)
    assert RunMetrics.of(run_of(tmp_path)).lines == [{"step": 1, "loss/last": 2}]
    assert RunMetrics.of(run_of(tmp_path)).unread == ""


def test_metrics_that_cannot_be_opened_are_said(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()
    assert "Is a directory" in RunMetrics.of(run_of(tmp_path)).unread


def test_finding_that_cannot_be_read_is_left_out_and_said(tmp_path):
    finding = Finding("code", 3, "seen", "likely", "advice")
    with (tmp_path / "findings.jsonl").open("wb") as file:
        file.write(b'{"code": ["x"], "step": 1, "seen": "", "likely": "", "advice": ""}\n')
        file.write(b'{"code": "x"}\n')
    finding.write(tmp_path)
    said = "findings.jsonl: 2 left out that cannot be read, first line 1: no finding"
    assert Finding.read(tmp_path) == ([finding], said)
