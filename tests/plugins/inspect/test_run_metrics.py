"""What a run wrote is read line by line, and what cannot be read is counted and said."""

import json
from pathlib import Path

import pytest

from agl.algorithm.run_result import RunResult
from agl.store.memory import InMemoryLightningStore
from agl_inspect.report.page import page
from agl_inspect.report.text import summary_text
from agl_learning.reports.findings import Finding, read_findings, write_finding
from agl_learning.reports.run_metrics import lines_of, metrics_of
from agl_runs.records import Run
from agl_views.runs.run_facts import run_facts

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
    metrics = metrics_of(run_of(tmp_path))
    assert metrics.rewards == {1: 0.5, 2: 0.75}
    assert metrics.val_rewards == {}
    assert metrics.unread.startswith("metrics.jsonl: 1 left out that cannot be read, first line 2")
    known = RunResult(run_id="run-1", folder=tmp_path)
    facts = await run_facts(InMemoryLightningStore(), result=known)
    assert facts.curve[:2] == [(1, 0.5), (2, 0.75)]
    assert "unread       metrics.jsonl: 1 left out" in summary_text(facts, 200)
    assert metrics.unread.split(":")[-1] in page(facts).replace("&#x27;", "'")
    json.dumps(facts.as_json(), allow_nan=False)


def test_last_line_without_its_end_is_being_written(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(GOOD[0] + b'{"step": 2, "rew')
    metrics = metrics_of(run_of(tmp_path))
    assert (metrics.step, metrics.unread) == (1, "")


def test_text_that_describes_a_step_is_no_metric(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(
        b'{"step": 1, "version": "base", "train/engine": "trl 1", "loss/last": 2}\n'
    )
    assert lines_of(run_of(tmp_path)) == [{"step": 1, "loss/last": 2}]
    assert metrics_of(run_of(tmp_path)).unread == ""


def test_metrics_that_cannot_be_opened_are_said(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()
    assert "Is a directory" in metrics_of(run_of(tmp_path)).unread


def test_finding_that_cannot_be_read_is_left_out_and_said(tmp_path):
    finding = Finding("code", 3, "seen", "likely", "advice")
    with (tmp_path / "findings.jsonl").open("wb") as file:
        file.write(b'{"code": ["x"], "step": 1, "seen": "", "likely": "", "advice": ""}\n')
        file.write(b'{"code": "x"}\n')
    write_finding(tmp_path, finding)
    assert read_findings(tmp_path) == (
        [finding],
        "findings.jsonl: 2 left out that cannot be read, first line 1: no finding",
    )
