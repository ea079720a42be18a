"""Doctor, run, ledger and explain with a model that is served and trained here."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("openai")

from .conftest import write_project


@pytest.fixture
def agl(own_modules: Path, tokenizer: Any, model: Any, agl: Any):
    tokenizer.save_pretrained("model")
    model.save_pretrained("model")
    options = {"steps": 2, "torch_threads": 1, "run_dir": "learner"}
    reward = "text.count('one') - text.count('red')"
    write_project(own_modules, reward, ["red", "green"], turns=2, **options)

    def call(*arguments: str) -> tuple[object, str]:
        code, out, err = agl(*arguments)
        return code, out or err

    return call


def steps_of(run: Path) -> list[dict[str, Any]]:
    return [*map(json.loads, (run / "metrics.jsonl").read_text().splitlines())]


@pytest.mark.parametrize(
    "evaluates",
    [[], ["val=tasks.jsonl", "algorithm.evaluation.every=1", "algorithm.evaluation.copies=2"]],
)
def test_the_doctor_sees_the_model_that_grpo_serves(agl, tmp_path: Path, evaluates: list[str]):
    before = {path.name for path in tmp_path.iterdir()}
    code, out = agl("doctor", "agl.yaml", *evaluates, "--json")
    diagnosis = json.loads(out)
    assert (code, diagnosis["algorithm"]) == (0, "grpo")
    assert diagnosis["rollout"]["mode"] == "train"
    # An untrained model may talk until its limit of tokens, and say what is encoded otherwise.
    found = [finding["code"] for finding in diagnosis["findings"]]
    calls = diagnosis["calls"]
    is_cut, is_broken = any(call["truncated"] for call in calls), calls[-1]["row"] == 1
    assert found == ["truncated"] * is_cut + ["row_break"] * is_broken
    assert [call["grade"] for call in calls] == ["A", "A"]
    assert {path.name for path in tmp_path.iterdir()} - before <= {"__pycache__"}


@pytest.mark.parametrize("verb", ["config", "doctor", "run"])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("adapter=messages", "TraceToMessages.adapt makes none. Use the adapter 'rows'"),
        ("algorithm.evaluation.every=1", "evaluation.every is 1, and there are no val"),
    ],
)
def test_what_does_not_fit_the_algorithm_is_refused_by_every_command(agl, verb, wrong, message):
    code, out = agl(verb, "agl.yaml", wrong)
    assert (code, message in out) == (2, True), out


def test_the_doctor_and_the_run_refuse_a_tokenizer_that_loses_the_prompts(
    agl, tmp_path: Path, broken_tokenizer: Any
) -> None:
    broken_tokenizer.save_pretrained(tmp_path / "model")
    code, out = agl("doctor", "agl.yaml", "--json")
    diagnosis = json.loads(out)
    assert (code, diagnosis["trainable"]) == (1, False)
    assert "A" not in [call["grade"] for call in diagnosis["calls"]]
    finding = next(one for one in diagnosis["findings"] if one["code"] == "prompt_lost")
    assert "tokens [0]" in finding["message"]
    assert "without 'red'" in finding["message"]
    code, out = agl("run", "agl.yaml", "algorithm.steps=3", "algorithm.max_tokens=1")
    assert code == 1
    assert "reach the model as 1 sequence of tokens" in " ".join(out.split())


def test_every_call_of_a_run_is_in_its_ledger_and_every_token_has_its_advantage(agl) -> None:
    code, out = agl("run", "agl.yaml")
    assert (code, "ledger\nstep" in out) == (0, True), out
    ledger = json.loads(agl("ledger", "out", "--json")[1])
    calls = ledger["total"]["calls"]
    assert calls["total"] == 2 * 2 * 4 * 2  # steps, groups, rollouts of each, calls of each
    assert calls["trained"] + sum(calls["excluded"].values()) == calls["total"]
    assert [step["step"] for step in ledger["steps"]] == [1, 2]
    trained = 0
    for rollout in json.loads(agl("rollouts", "--path", "out", "--json")[1]):
        whole = json.loads(agl("explain", rollout["rollout_id"], "--path", "out", "--json")[1])
        assert len(whole["siblings"]) == 3
        trained += sum(len(row["calls"]) for row in whole["rows"])
        for row in whole["rows"]:
            last = row["calls"][-1]
            where = ["--row", str(row["number"]), "--token", str(last["tokens"][1] - 1)]
            said = agl("explain", rollout["rollout_id"], *where, "--path", "out", "--json")[1]
            (call,) = json.loads(said)["rows"][0]["calls"]
            assert call["advantage"] == last["advantage"] != 0
            mean = sum([rollout["reward"], *whole["siblings"].values()]) / 4
            assert (call["advantage"] > 0) == (rollout["reward"] > mean)
    assert trained == calls["trained"] > 0


def test_eval_serves_the_model_of_a_file_a_run_or_a_checkpoint(agl, tmp_path: Path) -> None:
    given = ("val=tasks.jsonl", "algorithm.evaluation.temperature=1", "algorithm.seed=1")
    assert agl("run", "agl.yaml", *given, "algorithm.run_dir=null")[0] == 0
    metrics = (tmp_path / "out/metrics.jsonl").read_bytes()
    checkpoint = "out/checkpoints/step-000002"
    found = {}
    for target in ("agl.yaml", "out", checkpoint):
        code, out = agl("eval", target, *given, "--copies", "3", "--json")
        assert code == 0, out
        found[target] = json.loads(out[out.index("{") :])
    assert found["out"]["tasks"] == found[checkpoint]["tasks"]
    for one in found.values():
        assert [task["rollouts"] for task in one["tasks"]] == [3, 3]
        assert {"mean@3", "pass@1", "pass@2", "pass@3"} <= one["metrics"].keys()
    assert (tmp_path / "out/metrics.jsonl").read_bytes() == metrics
    run = found["out"]["run"]
    (line,) = steps_of(tmp_path / "agl-runs" / run)
    assert line["val/pass@3"] == found["out"]["metrics"]["pass@3"]
    summary = json.loads((tmp_path / "agl-runs" / run / "summary.json").read_text())
    assert summary["val/mean@3"] == pytest.approx(found["out"]["metrics"]["mean@3"])
    assert summary["calls_trained"] == 0  # what the other run trained is in its own ledger
