"""The scripts of ``examples/apo`` against a scripted model."""

import asyncio
import importlib
import json
import os
import re
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests import fork_server
from tests.interpreter import AGL, python, started

import agl
from agl_testing.echo_llm import EchoLLM

EXAMPLE = Path(__file__).parents[3] / "examples" / "apo"
HINT = "Take the smallest free room that has all of it."

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def room_selector() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLE)
        return importlib.import_module("room_selector")


def test_tasks_are_labelled_by_the_rule_that_the_example_states(room_selector) -> None:
    train, val = room_selector.load_tasks()
    assert (len(train), len(val)) == (28, 29)
    for task in (*train, *val):
        right = room_selector.right_room(task["task_input"])
        assert task["private"]["expected_choice"] == right, task["id"]
    choices = Counter(task["private"]["expected_choice"] for task in (*train, *val))
    assert len(choices) == 8
    assert max(choices.values()) / 57 < 0.25  # always naming one room does not pay
    assert len({json.dumps(task["task_input"]) for task in (*train, *val)}) == 57


def scripted(seen: list[str]) -> Any:
    """An agent's model that uses the tool, and takes the biggest room unless told otherwise."""

    def reply(body: dict[str, Any]) -> Any:
        messages = body["messages"]
        text = messages[0]["content"]
        seen.append(text)
        if body["model"] == "critic":
            return "It does not say which of several rooms to take."
        if body["model"] == "editor":
            prompt = re.search(r"<prompt>\n(.*?)\n</prompt>", text, re.S)
            assert prompt is not None
            return prompt.group(1) if HINT in prompt.group(1) else f"{prompt.group(1)} {HINT}"
        if "Grade how well" in text:
            return "0.9" if "teacher" in str(seen[-2]) else "0.4"
        if not body.get("tools"):
            return f"Light is scattered. {text}"
        found = re.search(r"on (\S+) at (\S+) for (\d+) minutes, for (\d+) people", text)
        assert found is not None
        if messages[-1]["role"] != "tool":
            arguments = {"date": found[1], "time": found[2], "duration_min": int(found[3])}
            call = {"name": "get_rooms_and_availability", "arguments": json.dumps(arguments)}
            calls = [{"id": "call-1", "type": "function", "function": call}]
            return {"role": "assistant", "content": None, "tool_calls": calls}
        fitting = [
            room["id"]
            for room in json.loads(messages[-1]["content"])
            if room["free"]
            and room["capacity"] >= int(found[4])
            and all(f"'{need}'" not in text or need in room["equipment"]
                    for need in ("projector", "whiteboard", "phone", "tv"))
            and (room["accessible"] or "access needed: True" not in text)
        ]  # fmt: skip
        return fitting[0 if HINT in text else -1]

    return reply


@pytest.fixture
def seen() -> list[str]:
    """First messages of all requests."""
    return []


@pytest.fixture
def llm(seen: list[str]) -> Iterator[EchoLLM]:
    with EchoLLM(scripted(seen)) as server:
        yield server


def run(script: str, *arguments: str, llm: EchoLLM, cwd: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AGL_")}
    environment |= {"OPENAI_BASE_URL": llm.url, "OPENAI_API_KEY": "none"}
    environment["AGL_SERVER_PORT"] = "0"  # other tests run beside this one
    done = fork_server.run([EXAMPLE / script, *arguments], env=environment, cwd=cwd)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_room_selector_learns_which_room_to_take(llm, seen, tmp_path) -> None:
    models = ["--model", "agent", "--gradient-model", "critic", "--edit-model", "editor"]
    sizes = ["--rounds", "1", "--runners", "2"]
    output = run("room_selector_apo.py", *models, *sizes, llm=llm, cwd=tmp_path)
    assert "accepted: True" in output
    assert output.strip().endswith(HINT)
    critiques = [text for text in seen if "You review the prompts" in text]
    # The gateway recorded the conversations, so the critic saw the tool calls and their answers.
    assert all("get_rooms_and_availability(" in text for text in critiques)
    assert all('"capacity": 20' in text for text in critiques)
    assert list((tmp_path / "agl-runs").glob("*/best_prompt.prompt_template.txt"))


def test_custom_algorithm_runs_as_three_processes(llm, tmp_path) -> None:
    kept: dict[str, Any] = {"stderr": subprocess.STDOUT, "text": True, "cwd": tmp_path}
    agl_store = started(*AGL, "store", "--port", "0", "--backend", "memory", **kept)
    try:
        assert agl_store.stdout is not None
        found = (re.search(r"http://\S+:\d+", line) for line in agl_store.stdout)
        url = next(one[0] for one in found if one)
        environment = {**os.environ, "OPENAI_BASE_URL": llm.url, "OPENAI_API_KEY": "none"}
        script = str(EXAMPLE / "apo_custom_algorithm.py")
        runner = subprocess.Popen([sys.executable, script, "runner", "--url", url], env=environment)
        output = run("apo_custom_algorithm.py", "algo", "--url", url, llm=llm, cwd=tmp_path)
        assert runner.wait(timeout=250) == 0
    finally:
        agl_store.terminate()
        agl_store.communicate(timeout=250)
    assert "best prompt: You are a friendly teacher" in output


def test_custom_algorithm_runs_in_the_trainer(llm, tmp_path) -> None:
    output = run("apo_custom_algorithm_trainer.py", llm=llm, cwd=tmp_path)
    assert output.count("succeeded, reward") == 3
    assert "best prompt: You are a friendly teacher" in output


@pytest.mark.parametrize("end", ["deleted", "cancelled"])
async def test_custom_algorithm_says_that_nothing_came_of_its_rollouts(end: str) -> None:
    store = agl.InMemoryLightningStore()
    script = runpy.run_path(str(EXAMPLE / "apo_custom_algorithm.py"))
    running = asyncio.create_task(script["apo_algorithm"](store))
    while not running.done():
        for one in await store.query_rollouts(status_in=["queuing"]):
            if end == "deleted":
                await store.delete_rollouts([one.rollout_id])
            else:
                await store.update_rollout(one.rollout_id, status="cancelled")
        await asyncio.sleep(0)
    message = "was deleted before" if end == "deleted" else "no rollout got a reward"
    assert message in str(running.exception())


def test_debug_script_shows_the_spans(llm, tmp_path) -> None:
    output = run("apo_debug.py", "hook", llm=llm, cwd=tmp_path)
    assert "Trace spans collected" in output
    assert "agentlightning.reward.0.value" in output


def test_debug_script_dry_runs_the_trainer(llm, tmp_path) -> None:
    run("apo_debug.py", "trainer", llm=llm, cwd=tmp_path)


def test_prompts_are_proposed_from_recorded_attempts_alone(tmp_path: Path) -> None:
    said = [("Answer the guest.", 0.2), ("Answer the guest kindly.", 0.6), ("Go away.", None)]
    lines = []
    for prompt, reward in said:
        system = {"role": "system", "content": prompt}
        lines.append({"messages": [system, {"role": "user", "content": "Hi"}], "reward": reward})
    file = tmp_path / "messages.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def model(body: dict[str, Any]) -> str:
        text = body["messages"][0]["content"]
        return "Answer in French." if "Critique:\nIt is curt." in text else "It is curt."

    silent = tmp_path / "silent.jsonl"
    silent.write_text(json.dumps({"messages": [{"role": "user", "content": "Hi"}], "reward": 1}))
    refused = python(EXAMPLE / "recorded_attempts.py", silent)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "record the prompt as the message of role 'system'" in refused.stderr
    with EchoLLM(model) as llm:
        output = run("recorded_attempts.py", str(file), "--edits", "1", llm=llm, cwd=tmp_path)
    assert output.splitlines() == [
        "left out: 1 lines without a reward or a system message",
        "0.600 over 1 attempts: 'Answer the guest kindly.'",
        "0.200 over 1 attempts: 'Answer the guest.'",
        "",
        "proposed, never run:",
        "Answer in French.",
    ]
