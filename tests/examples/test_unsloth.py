"""The math agent: its reward, itself through the gateway, and fine-tuning of a tiny model."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from example_bench import (
    EXAMPLES,
    calling,
    check_alone,
    check_calculation,
    environment,
    memory_store,
    play,
    run_script,
    scripts,
)

import agl
from agl_testing.echo_llm import RawReply

for module in ("agents", "mcp"):
    pytest.importorskip(module)

FOLDER = EXAMPLES / "unsloth"
TASK = {"input": "What is (12 + 30) * 2?", "private": {"target": 84}}


@pytest.mark.parametrize(
    ("text", "target", "reward"),
    [
        ("### 84 ###", 84, 1),
        ("### 84.0 ###", 84, 1),
        ("It is ### $1,084.50 ###.", 1084.5, 1),
        ("### 1 ### or ### -2 ###", -2, 1),
        ("### 3e5 ###", 300000, 1),
        ("### 84 km ###", 84, 1),
        ("### 85 ###", 84, 0),
        ("### many ###", 84, 0),
        ("### - ###", 84, 0),
        ("84", 84, 0),
        ("", 84, 0),
    ],
)
def test_answer_is_graded(text: str, target: float, reward: float) -> None:
    assert scripts.math_agent.compute_reward(text, target) == reward


def test_problems_are_read(tmp_path: Path) -> None:
    problems = scripts.math_agent.load_problems()
    assert len(problems) == 48
    assert {tuple(problem) for problem in problems} == {("input", "private")}
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps({"input": TASK["input"], "target": 84}) + "\n")
    assert scripts.math_agent.load_problems(path) == [TASK]


@pytest.mark.parametrize(("expression", "reward"), [("(12 + 30) * 2", 1), ("12 + 30 * 2", 0)])
async def test_agent_calls_the_calculator_and_both_calls_are_learned_from(
    expression: str, reward: float
) -> None:
    agent = scripts.math_agent.math_agent
    await check_calculation(agent, "math_agent", TASK, "### {} ###", expression, reward)


@pytest.mark.parametrize("name", ["calculate", "no_such_tool"])
async def test_model_that_never_answers_gets_no_reward(name: str) -> None:
    outcome = await play(scripts.math_agent.math_agent, TASK, lambda request: calling("1", name))
    assert (outcome.rollout.status, outcome.reward) == ("succeeded", 0)


async def test_model_that_cannot_be_reached_fails_the_attempt() -> None:
    outcome = await play(scripts.math_agent.math_agent, TASK, lambda request: RawReply(500, b"{}"))
    assert (outcome.rollout.status, outcome.reward) == ("failed", None)


def test_calls_of_tools_are_found_and_written_again_as_they_were() -> None:
    text, server = scripts.tiny_model.tool_call(3, 4), scripts.tiny_server
    [call] = server.find_calls(text)
    assert call["function"] == {"name": "calculate", "arguments": '{"expression": "3 + 4"}'}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert server.as_text(message) == {"role": "assistant", "content": text}
    parts = {"role": "tool", "content": [{"type": "text", "text": "7"}]}
    assert server.as_text(parts) == {"role": "tool", "content": "7"}
    assert server.find_calls("<tool_call> {no json} </tool_call>") == []
    assert server.find_calls('<tool_call> {"name": "calculate"} </tool_call>') == []
    assert server.find_calls("### 7 ###") == []


def test_settings_for_a_gpu_are_taken_by_sft(tmp_path: Path) -> None:
    pytest.importorskip("agl_unsloth")
    import argparse

    parser = argparse.ArgumentParser()
    scripts.sft_settings.add_options(parser)
    options = parser.parse_args(["--out", str(tmp_path)])
    with scripts.sft_settings.sft(options) as (settings, problems):
        trainer = agl.Trainer(algorithm=settings)  # it refuses options that there are not
    assert type(trainer.algorithm).__name__ == "SFT"
    assert len(problems) == 48


def test_agent_runs_alone() -> None:
    reply = scripts.scripted_llm.scripted_reply(scripts.math_agent.load_problems())
    check_alone(FOLDER / "math_agent.py", reply)


def check_run(done: subprocess.CompletedProcess[str], folder: Path, iterations: int) -> None:
    """The newest version is better than the first, and every call is accounted for."""
    found = re.findall(r"validation of version (\d+): ([\d.]+)", done.stdout)
    rewards = {int(version): float(reward) for version, reward in found}
    assert set(rewards) >= {0, iterations}
    # Seen: rises of 0.38, 0.50 and 0.64, from 50 sampled answers at each end.
    assert rewards[iterations] > rewards[0] + 0.25
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["calls"] == summary["calls_trained"] + sum(summary["calls_excluded"].values())
    assert summary["calls_excluded"]["below_threshold"] > 0
    assert (Path(summary["model"]) / "model.safetensors").is_file()


@pytest.mark.slow
def test_tiny_model_is_fine_tuned_all_in_one(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    done = run_script(
        FOLDER / "sft_allinone.py", "--tiny", "--runners", 1, "--out", tmp_path, "--iterations", 1
    )
    check_run(done, tmp_path, 1)


@pytest.mark.slow
def test_tiny_model_is_fine_tuned_by_three_processes(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    with memory_store(environment()) as url:
        command = [sys.executable, FOLDER / "sft_rollout_runners.py", "--runners", "1"]
        runners = subprocess.Popen([*command, "--url", url], env=environment())
        options = ("--tiny", "--url", url, "--out", tmp_path, "--iterations", 1)
        try:
            done = run_script(FOLDER / "sft_algorithm.py", *options)
        finally:
            runners.send_signal(signal.SIGINT)
            runners.wait(timeout=30)
    check_run(done, tmp_path, 1)
