"""``agl eval``: several rollouts of each task, and what they say."""

import json
import re

import pytest

AGENT = """
import agl

@agl.rollout
async def agent(task: dict) -> float:
    if task["x"] == 3:
        raise ValueError("three is odd")
    return float(task["x"] % 2)
"""


@pytest.fixture
def evaluate(agl, own_modules):
    (own_modules / "eval_agent.py").write_text(AGENT)
    (own_modules / "val.jsonl").write_text('{"x": 1}\n{"x": 2}\n{"x": 3}\n')
    text = "agent: eval_agent:agent\nalgorithm: baseline\nstrategy: shm\n"
    (own_modules / "agl.yaml").write_text(text)
    return lambda *arguments: agl("eval", "agl.yaml", *arguments)


def test_each_task_runs_so_often_and_failures_are_counted_by_cause(evaluate):
    code, out, err = evaluate("val=val.jsonl", "--copies", "2", "--json")
    found = json.loads(out)
    assert code == 0, err
    rewards = {one["task"]["x"]: one["rewards"] for one in found["tasks"]}
    assert rewards == {1: [1.0, 1.0], 2: [0.0, 0.0], 3: []}
    assert found["failures"] == {"agent: ValueError": 2}
    means = dict.fromkeys(("reward/mean", "mean@2", "pass@1", "pass@2"), 0.5)
    assert found["metrics"] == {**means, "rollouts": 6, "failed": 2}


def test_the_table_says_the_same(evaluate):
    code, out, err = evaluate("val=val.jsonl", "--copies", "2")
    assert code == 0, err
    assert re.search(r'\{"x": 3\} +2 +2 +none +0', out)
    assert "failed       2 x agent: ValueError, as in: three is odd" in out


def test_without_val_the_tasks_of_train_are_taken_and_that_is_said(evaluate):
    code, out, err = evaluate("train=val.jsonl", "--copies", "1", "--json")
    assert code == 0, err
    assert "there is no val: these are the tasks of train" in err
    assert json.loads(out)["metrics"] == {"reward/mean": 0.5, "rollouts": 3, "failed": 1}


def test_where_none_succeeded_the_exit_code_says_so(evaluate, tmp_path):
    (tmp_path / "val.jsonl").write_text('{"x": 3}\n')
    code, out, err = evaluate("val=val.jsonl", "--json")
    assert code == 1, err
    assert json.loads(out)["failures"] == {"agent: ValueError": 4}
    assert "no rollout succeeded" in err


def test_nothing_to_evaluate_on_is_refused(evaluate):
    code, _, err = evaluate()
    assert code == 2
    assert "there is nothing to evaluate on" in err
