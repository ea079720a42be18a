"""Several agents in one rollout, some of them trained: the SQL agent of ``examples/spider``."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("verl")
pytest.importorskip("langgraph")

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


def test_writing_and_rewriting_are_learned_and_checking_is_not(tmp_path):
    script = Path(__file__).with_name("spider.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, tmp_path, "12"],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    summary = json.loads((tmp_path / "summary.json").read_text())
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    rewards = summary["rewards"]
    assert sum(rewards[-4:]) / 4 > sum(rewards[:2]) / 2 + 0.1, rewards
    # Each check of a query is a call of the agent that is not trained.
    excluded = summary["calls_excluded"]
    assert excluded["agent_not_selected"] > 12 * 64
    assert summary["calls"] == summary["calls_trained"] + sum(excluded.values())
    name = "training/rollout_probs_diff_max"
    differences = [line[name] for line in lines if name in line]
    assert len(differences) == 12
    assert max(differences) < 1e-5
