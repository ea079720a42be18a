"""The calculator agent: its calculator, its reward, and the agent itself through the gateway."""

import asyncio
import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from example_bench import (
    EXAMPLES,
    calling,
    check_alone,
    check_calculation,
    play,
    run_script,
    scripts,
    write_parquet,
)

from agl.runner.sandbox import grader_of

for module in ("autogen_agentchat", "autogen_ext", "mcp"):
    pytest.importorskip(module)

FOLDER = EXAMPLES / "calc_x"
SCRIPT = FOLDER / "train_calc_agent.py"
TASK = {"question": "What is (12 + 30) * 2?", "private": {"result": "84"}}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(12 + 30) * 2", "84"),
        ("7 / 2", "3.5"),
        ("6 / 2", "3"),
        ("-2 ** 2", "-4"),
        ("7 // 2 + 7 % 2", "4"),
        ("round(2.5678, 2)", "2.57"),
        ("sqrt(16) + abs(-1) + max(1, 2, 3)", "8"),
        ("2 ** 100", str(2**100)),
    ],
)
def test_calculator_calculates(expression: str, value: str) -> None:
    assert scripts.calculator.calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9",
        "2**-100000",
        "10**600 * 10**600",
        "1e308 * 10",
        "round(5, -1000000000)",
        "1 / 0",
        "(-8) ** 0.5",
        "sqrt(-1)",
        "__import__('os').system('true')",
        "().__class__",
        "open('x')",
        "[1] * 10**9",
        "'a' * 10**9",
        "lambda: 1",
        "abs(x=1)",
        "True + 1",
        "1 +",
        "",
        "(" * 900 + "1" + ")" * 90,
        "1 + " * 300,
    ],
)
def test_calculator_refuses_what_is_no_calculation(expression: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of every kind; the tool gives it as an error
        scripts.calculator.calculate(expression)


def children() -> set[int]:
    """Processes that this one has started and that still run."""
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = path.read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                found.add(int(path.parent.name))
    return found


async def test_calculator_is_one_process_while_it_is_used(tmp_path: Path) -> None:
    before = children()
    async with scripts.calc_agent.calculator() as one:
        assert [tool["name"] for tool in await one.list_tools()] == ["calculate"]
        started = children() - before
        async with scripts.calc_agent.calculator() as other:
            assert one is other
            answers = await asyncio.gather(
                one.call_tool("calculate", {"expression": "6 * 7"}),
                other.call_tool("calculate", {"expression": "9**9**9"}),
            )
        again = await one.call_tool("calculate", {"expression": "1 + 1"})
        assert children() - before == started
    assert [answer.is_error for answer in answers] == [False, True]
    assert answers[0].to_text() == "42"
    assert "too large" in answers[1].to_text()
    assert again.to_text() == "2"
    assert len(started) == 1
    assert children() <= before  # those of a test before this one may just have ended


def test_small_set_is_the_same_each_time_and_its_parts_are_apart() -> None:
    train, test = scripts.calc_tasks.small_tasks()
    assert (train, test) == scripts.calc_tasks.small_tasks()
    assert (len(train), len(test)) == (120, 40)
    assert not {task["question"] for task in train} & {task["question"] for task in test}


def test_results_of_plain_sums_are_right() -> None:
    sums = [
        task
        for part in scripts.calc_tasks.small_tasks()
        for task in part
        if set(task["question"][8:-1]) <= set("0123456789+-*() ")
    ]
    assert len(sums) == 20
    for task in sums:
        assert scripts.calculator.calculate(task["question"][8:-1]) == task["private"]["result"]


def test_calc_x_is_read_from_parquet(tmp_path: Path) -> None:
    for name, result in (("train", "1/2"), ("test", "3")):
        row = {"id": "a", "question": name, "chain": "<gadget/>", "result": result}
        write_parquet(tmp_path / f"{name}.parquet", row)
    train, test = scripts.calc_tasks.load_tasks(
        tmp_path / "train.parquet", tmp_path / "test.parquet"
    )
    assert train == [{"question": "train", "private": {"result": "1/2"}}]
    assert test == [{"question": "test", "private": {"result": "3"}}]
    with pytest.raises(FileNotFoundError):
        scripts.calc_tasks.load_tasks(tmp_path / "train.parquet", tmp_path / "none.parquet")


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("### ANSWER: 84 ###", 1),
        ("### ANSWER: 84.0 ###", 1),
        ("first ### ANSWER: 1 ### and then ### answer: $84 ###", 1),
        ("### ANSWER: 168/2 km ###", 1),
        ("### ANSWER: 85 ###", 0),
        ("### ANSWER: -84 ###", 0),
        ("### ANSWER: 84/0 ###", 0),
        ("### ANSWER: eighty-four ###", 0),
        ("84", 0),
        ("", 0),
    ],
)
def test_answer_is_graded(text: str, reward: float) -> None:
    assert scripts.answers.grade(text, "84") == reward


def test_data_without_a_number_is_no_reward() -> None:
    assert scripts.answers.grade("### ANSWER: 1,250.5 ###", "1250.50") == 1
    with pytest.raises(ValueError, match="must be a number"):
        scripts.answers.grade("### ANSWER: 1 ###", "unknown")


@pytest.mark.parametrize(("expression", "reward"), [("(12 + 30) * 2", 1), ("12 + 30 * 2", 0)])
async def test_agent_calls_the_calculator_and_both_calls_are_learned_from(
    expression: str, reward: float
) -> None:
    agent = scripts.calc_agent.calc_agent
    grader_of(agent)  # its process stays for as long as there is the agent
    before = children()
    await check_calculation(agent, "calc_agent", TASK, "### ANSWER: {} ###", expression, reward)
    assert children() <= before  # those of a test before this one may just have ended


async def test_error_of_the_calculator_goes_back_to_the_model() -> None:
    def reply(request: dict[str, Any]) -> Any:
        results = [m["content"] for m in request["messages"] if m["role"] == "tool"]
        if len(results) == 2:
            return f"### ANSWER: {results[1]} ###"
        expression = "(12 + 30" if not results else "(12 + 30) * 2"
        return calling(expression, call_id=f"call_{len(results)}")

    outcome = await play(scripts.calc_agent.calc_agent, TASK, reply)
    assert outcome.reward == 1
    assert "cannot calculate" in outcome.requests[1]["messages"][-1]["content"]


async def test_agent_that_never_stops_calling_ends_without_reward() -> None:
    outcome = await play(scripts.calc_agent.calc_agent, TASK, lambda request: calling("1"))
    assert outcome.rollout.status == "succeeded"
    assert outcome.reward == 0
    assert len(outcome.requests) == scripts.calc_agent.MAX_TOOL_CALLS


def test_agent_runs_alone() -> None:
    train, test = scripts.calc_tasks.small_tasks()
    check_alone(FOLDER / "calc_agent.py", scripts.scripted_llm.scripted_reply([*train, *test]))


def test_dev_runs_every_task_from_the_command_line() -> None:
    done = run_script(SCRIPT, "--dev", "--scripted", "--tasks", 4)
    *lines, last = done.stdout.splitlines()
    assert last == "4 of 4 tasks have a reward; 4 are right"
    assert sum("learned: 2 calls" in line for line in lines) == 4


def test_dev_without_a_model_says_what_to_do() -> None:
    done = run_script(SCRIPT, "--dev", code=2)
    assert "OPENAI_BASE_URL" in done.stderr


@pytest.mark.slow
def test_tiny_model_learns_to_use_the_calculator(tmp_path: Path) -> None:
    pytest.importorskip("verl")
    # In a folder of pytest's the paths of Ray's sockets would be too long.
    run_script(SCRIPT, "--tiny", "--steps", 20, "--out", tmp_path, RAY_TMPDIR="/tmp")
    summary = json.loads((tmp_path / "summary.json").read_text())
    rewards = summary["rewards"]
    # Of 80 rollouts a step, not seeded; seen after 12 steps: 0.29 and 0.49, of 0.14 and 0.13.
    assert sum(rewards[-3:]) / 3 > sum(rewards[:2]) / 2 + 0.2
    assert summary["rollouts_failed"] == 0
    assert summary["calls"] == summary["calls_trained"] + sum(summary["calls_excluded"].values())
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    name = "training/rollout_probs_diff_max"
    differences = [line[name] for line in lines if name in line]
    assert len(differences) == 20
    assert max(differences) < 1e-5
    # An answer has at most 12 tokens: call, result and answer are in one row.
    assert max(line["response_length/max"] for line in lines if name in line) > 12
