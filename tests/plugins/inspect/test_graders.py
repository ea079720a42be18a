"""``agl doctor --graders`` on graders with and without a hole, each for real."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agl.cli import cli

pytest.importorskip("agl_gateway")
pytest.importorskip("openai")

AGENT = """
import asyncio

import agl
from openai import AsyncOpenAI

def strict(task, private, result):
    return float(result.strip() == private["answer"])

def contains(task, private, result):
    return float(private["answer"] in result)

def likes_form(task, private, result):
    return float("<answer>" in result)

def pays_nobody(task, private, result):
    return 0.0

def breaks(task, private, result):
    return float(result.split()[-1] == private["answer"].split()[-1])

def gives_none(task, private, result):
    return None

def breaks_on_right(task, private, result):
    return 0.0 / (result.strip() != private["answer"])

def gives_none_of_wrong(task, private, result):
    return 1.0 if result.strip() == private["answer"] else 0.0 if result.strip() else None

def pays_all(task, private, result):
    return 1.0

def graded(grade):
    @agl.rollout(grade=grade)
    async def agent(task, llm: agl.LLM) -> str:
        return await answer(task, llm, task["is_streamed"])
    return agent

async def answer(task, llm, is_streamed=False):
    async with AsyncOpenAI(base_url=llm.endpoint, api_key="x", max_retries=0) as client:
        asked = {"model": llm.model, "messages": [{"role": "user", "content": task["q"]}]}
        if is_streamed:
            stream = await client.chat.completions.create(**asked, stream=True)
            return "".join([c.choices[0].delta.content or "" async for c in stream])
        return (await client.chat.completions.create(**asked)).choices[0].message.content

@agl.rollout(grade=strict)
async def agent_with_judge(task, llm: agl.LLM, judge: agl.LLM, rollout: agl.Rollout) -> str:
    assert judge.model == "theirs"  # a model of the grader's is none of the agent's
    assert rollout.rollout_id in llm.endpoint  # of the gateway that the training has
    return await answer(task, llm)

@agl.rollout(grade=strict)
async def agent_that_asks_on(task, llm: agl.LLM) -> str:
    while not (said := (await answer(task, llm)).strip()):
        await asyncio.sleep(2)
    return said

@agl.rollout(grade=strict)
async def agent_of_team(task, writer: agl.LLM, critic: agl.LLM) -> str:
    assert await answer(task, critic) is not None
    return await answer(task, writer)

@agl.rollout
def takes_no_model(task) -> float:
    return 1.0

AGENTS = {name: graded(globals()[name]) for name in (
    "strict", "contains", "likes_form", "pays_nobody", "breaks", "pays_all", "gives_none",
    "breaks_on_right", "gives_none_of_wrong")}
globals().update({f"agent_{name}": agent for name, agent in AGENTS.items()})
"""
READABLE = ("warning", "private_readable")
NOT_PAID = ("error", "solution_not_paid")


def audited(
    folder: Path, capsys: Any, grader: str, *overrides: str, key: str = "answer", num_tasks: int = 2
) -> Any:
    """Exit code and what the command writes as JSON."""
    (folder / "graded_agent.py").write_text(AGENT)
    tasks = [
        {"q": f"what is {n}", "is_streamed": n % 2 == 0, "private": {key: f"the number {n}"}}
        for n in range(6)
    ]
    os.mkfifo(folder / "a_pipe")  # nobody writes to it
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps(task) + "\n" for task in tasks))
    llm = 'llm: {resource_type: llm, endpoint: "http://127.0.0.1:9/v1", model: m}'
    (folder / "agl.yaml").write_text(
        f"agent: graded_agent:{grader}\ntrain: tasks.jsonl\nalgorithm: baseline\n"
        f"strategy: shm\nresources: {{{llm}}}\n"
    )
    asked = ["doctor", str(folder / "agl.yaml"), *overrides, "--graders", "--json"]
    asked += ["--tasks", str(num_tasks)]
    code = cli.main(asked, standalone_mode=False)
    return code, json.loads(capsys.readouterr().out)


pytestmark = pytest.mark.usefixtures("here")


@pytest.mark.parametrize(
    ("grader", "overrides", "code", "found"),
    [
        ("strict", [], 0, [READABLE]),
        ("contains", ["gateway=proxy"], 1, [("error", "everything_paid"), READABLE]),
        ("likes_form", [], 1, [NOT_PAID, ("error", "format_paid"), READABLE]),
        ("gives_none", [], 1, [("error", "no_rewards"), READABLE]),
        ("pays_nobody", [], 1, [NOT_PAID, READABLE]),
        ("breaks_on_right", [], 1, [("warning", "solution_fails"), NOT_PAID, READABLE]),
        ("gives_none_of_wrong", [], 0, [("warning", "empty_unrewarded"), READABLE]),
        ("breaks", [], 1, [("warning", "empty_fails"), ("error", "question_paid"), READABLE]),
    ],
)
def test_what_is_paid_is_found(tmp_path, capsys, grader, overrides, code, found):
    done, said = audited(tmp_path, capsys, f"agent_{grader}", *overrides)
    assert [(one["level"], one["code"]) for one in said["findings"]] == found
    assert (done, said["is_sound"], said["num_tasks"]) == (code, code == 0, 2)
    earned = {one["answer"]: one["rewards"] for one in said["paid"]}
    assert [*earned] == ["solution", "empty", "question", "random", "format", "everything"]
    if grader == "strict":
        assert earned.pop("solution") == [1.0, 1.0]
        assert {*map(tuple, earned.values())} == {(0.0, 0.0)}


GRPO = "{type: grpo, model: m}"
TEAM = f"algorithm={{type: team, models: {{writer: {GRPO}, critic: {GRPO}}}}}"
OF_LLM = "algorithm={type: grpo, model: m, resource_name: llm"
JUDGE = "resources={judge: {resource_type: llm, endpoint: x, model: theirs}}"


@pytest.mark.parametrize(
    ("agent", "overrides", "found"),
    [
        ("agent_with_judge", [JUDGE, f"{OF_LLM}}}"], []),
        ("agent_of_team", [TEAM], []),
        ("agent_that_asks_on", [f"{OF_LLM}, rollouts: {{timeout_seconds: 20}}}}"], ["empty_fails"]),
    ],
)
def test_trained_models_are_answered_for_in_time(tmp_path, capsys, agent, overrides, found):
    pytest.importorskip("agl_torch")
    code, said = audited(tmp_path, capsys, agent, *overrides)
    assert (code, [one["code"] for one in said["findings"]]) == (0, [*found, "private_readable"])


@pytest.mark.parametrize(
    ("num_tasks", "asked"), [(1, [0]), (2, [0, 3]), (4, [0, 1, 3, 4]), (9, [0, 1, 2, 3, 4, 5])]
)
def test_tasks_are_evenly_spread(tmp_path, capsys, monkeypatch, num_tasks, asked):
    seen = []
    monkeypatch.setattr("agl_inspect.graders.audit.solution_of", lambda task, _: seen.append(task))
    monkeypatch.setattr("agl_inspect.graders.audit.fit", lambda *_: None)
    audited(tmp_path, capsys, "agent_strict", num_tasks=num_tasks)
    assert [task["q"] for task in seen] == [f"what is {n}" for n in asked]


def test_where_what_is_private_was_not_looked_for_to_the_end_is_said(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("agl_inspect.graders.audit.NUM_FILES", 0)
    _, said = audited(tmp_path, capsys, "agent_strict")
    assert [one["code"] for one in said["findings"]] == ["not_read"]
    told = "it is in none of the first 0 files, and there are more"
    assert told in said["findings"][0]["message"]


def test_without_solutions_any_pay_for_nothing_is_one(tmp_path, capsys):
    code, said = audited(tmp_path, capsys, "agent_pays_all", key="expected")
    assert code == 1
    levels = {one["code"]: one["level"] for one in said["findings"]}
    errors = dict.fromkeys(["empty_paid", "format_paid", "everything_paid"], "error")
    warnings = dict.fromkeys(["question_paid", "random_paid", "private_readable"], "warning")
    assert levels == {**errors, **warnings, "no_solutions": "note"}


def test_an_agent_without_a_model_is_refused(tmp_path, capsys):
    with pytest.raises(Exception, match="agent 'takes_no_model' takes none"):
        audited(tmp_path, capsys, "takes_no_model")
