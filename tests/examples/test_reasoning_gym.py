"""Puzzles of reasoning-gym: the agent, its tasks, and what is said of a training."""

import asyncio
import sys
from importlib import import_module

import pytest
from example_bench import EXAMPLES

import agl
from agl_testing.echo_llm import EchoLLM

pytest.importorskip("reasoning_gym")

FOLDER = EXAMPLES / "reasoning_gym"


def test_training_asks_no_held_out_question():
    from solver import FAMILIES, split_tasks

    train, held_out = ({task["question"] for task in part} for part in split_tasks(100, 50, seed=0))
    assert not train & held_out
    assert len(held_out) == 50 * len(FAMILIES)


async def test_the_reward_is_the_score_of_reasoning_gym():
    from solver import PROMPT, draw, openai_client, solver

    one, other = draw("needle_haystack", seed=7, size=2)
    with EchoLLM(lambda request: one["answer"]) as model:
        llm = agl.LLM(endpoint=model.url, model="any")
        assert [await solver(task, PROMPT, llm) for task in (one, other)] == [1.0, 0.0]
    await openai_client(asyncio.get_running_loop()).close()


def test_gains_are_paired_by_task(capsys, tmp_path):
    from train import FAMILIES, show

    before = {(family, str(n)): n / 10 for family in FAMILIES for n in range(10)}
    show({0: before, 1: before}, {0: {one: before[one] + 0.1 for one in before}}, tmp_path)
    assert capsys.readouterr().out.count("+0.100 (+0.100 to +0.100)") == len(FAMILIES) + 1


@pytest.mark.parametrize("script", ["train", "improve_prompt"])
def test_a_missing_package_ends_a_script_with_how_to_install_it(script, monkeypatch):
    monkeypatch.setattr(sys, "argv", [script])
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(SystemExit, match=r"needs reasoning-gym.*Run: pip install reasoning-gym=="):
        import_module(script).main()


@pytest.mark.parametrize(
    ("script", "argument", "value", "least"),
    [("improve_prompt", "--max-evaluations", "0", 1), ("train", "--held-out-tasks", "1", 2)],
)
def test_too_few_are_refused_by_name(script, argument, value, least, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script, argument, value, "--model", "./nowhere"])
    with pytest.raises(SystemExit, match="2"):
        import_module(script).main()
    expected = f"{argument}: expected a whole number of at least {least}; got '{value}'"
    assert expected in capsys.readouterr().err
