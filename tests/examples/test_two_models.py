"""Two models learn together what neither can learn alone."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("openai")


@pytest.fixture
def signals(use_example: Any) -> Any:
    use_example("two_models")
    import signals

    return signals


def test_both_learn_from_the_same_rollouts(signals: Any, tmp_path: Path) -> None:
    before, *_, after = signals.train(STEPS, tmp_path)
    assert before < 0.3
    assert after > 0.8
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    learned = [line for line in lines if "sender/loss/total" in line]
    assert any("receiver/loss/total" in line for line in learned)
    summary = json.loads((tmp_path / "summary.json").read_text())
    excluded = sum(summary["calls_excluded"].values())
    assert summary["calls"] == summary["calls_trained"] + excluded
    folders = [one.name for one in Path(summary["checkpoint"]).iterdir() if one.is_dir()]
    assert sorted(folders) == ["receiver", "sender"]


@pytest.mark.parametrize("frozen", ["sender", "receiver"])
def test_neither_succeeds_alone(signals: Any, tmp_path: Path, frozen: str) -> None:
    *_, after = signals.train(STEPS, tmp_path, frozen)
    assert after < 0.5


STEPS = 30
