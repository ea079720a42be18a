"""The capital agent, and its fine-tuning at a local Azure through Azure's real SDKs."""

import csv
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from example_bench import EXAMPLES, debug_alone, play, run_script, scripts

for module in ("agl_azure", "azure.mgmt.cognitiveservices"):
    pytest.importorskip(module)
sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "azure"))

from azure_server import Azure, Login  # noqa: E402

FOLDER = EXAMPLES / "azure"
SCRIPT = FOLDER / "train_capital_agent.py"
TASK = {"question": "What is the capital of France?", "private": {"answer": "Paris"}}


class Careless(Azure):
    """Its base model looks every second country up, and else says what comes to its mind."""

    def guess(self, question: str, number: int, chance: random.Random) -> list[dict[str, Any]]:
        if question in scripts.capital_agent.CAPITALS.values():
            return [{"content": question}] * number
        call = scripts.scripted_llm.call_for(question)
        return [call if chance.random() < 0.5 else {"content": "Atlantis"} for _ in range(number)]


@pytest.fixture
def azure() -> Iterator[Azure]:
    server = Careless()
    server.server.start()
    yield server
    server.server.stop()


def test_every_question_can_be_answered_with_the_table() -> None:
    train, val = scripts.capital_agent.load_tasks()
    assert (len(train), len(val)) == (32, 8)
    for task in [*train, *val]:
        (country,) = [name for name in scripts.capital_agent.CAPITALS if name in task["question"]]
        assert scripts.capital_agent.country_capital_lookup(country) == task["private"]["answer"]
    assert "no country" in scripts.capital_agent.country_capital_lookup("Atlantis")
    with (FOLDER / "capital_samples.csv").open(encoding="utf-8") as lines:
        assert len(list(csv.DictReader(lines))) == 40


async def test_agent_looks_the_capital_up() -> None:
    agent = scripts.capital_agent.capital_agent
    outcome = await play(agent, TASK, scripts.scripted_llm.scripted_reply)
    assert (outcome.rollout.status, outcome.reward) == ("succeeded", 1)
    assert [message["role"] for message in outcome.requests[1]["messages"]] == [
        *("system", "user", "assistant", "tool")
    ]


@pytest.mark.parametrize(
    "function",
    [
        {"name": "country_capital_lookup", "arguments": "{no json"},
        {"name": "country_capital_lookup", "arguments": "[1]"},
        {"name": "country_capital_lookup", "arguments": '{"country": 7}'},
        {"name": "rm", "arguments": "{}"},
    ],
)
async def test_wrong_call_is_explained_to_the_model(function: Any) -> None:
    call = {"id": "call_1", "type": "function", "function": function}

    def reply(request: dict[str, Any]) -> Any:
        last = request["messages"][-1]
        if last["role"] == "tool":
            assert last["content"].startswith("Wrong call")
            return "Paris"
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    assert (await play(scripts.capital_agent.capital_agent, TASK, reply)).reward == 1


def test_agent_runs_alone() -> None:
    lines = debug_alone(FOLDER / "capital_agent.py", scripts.scripted_llm.scripted_reply)
    assert [line[:2] for line in lines[1::2]] == ["1 "] * 5
    assert all(" -> " in line for line in lines[::2])


def name_resource(azure: Azure, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The variables of ``.env.example``, and the options that are not for users."""
    openai = {"ENDPOINT": azure.url, "API_KEY": azure.key, "DEPLOYMENT": "base"}
    openai["MODEL"] = "gpt-base-2026-01-01"
    variables = {f"OPENAI_{name}": value for name, value in openai.items()}
    variables |= {"SUBSCRIPTION_ID": "sub-1", "RESOURCE_GROUP": "group-1"}
    for name, value in variables.items():
        monkeypatch.setenv(f"AZURE_{name}", value)
    resource = {"account_name": "acme", "credential": Login(azure.token)}
    quick = {"poll_seconds": 0.02, "show_progress": False, "rollouts_per_task": 3}
    return {**resource, "management_url": azure.url, **quick}


def test_iterations_teach_the_model_to_look_capitals_up(azure, tmp_path, monkeypatch) -> None:
    options = name_resource(azure, monkeypatch)
    options |= {"tasks_per_iteration": 32, "keep_fraction": 1.0}
    summary = scripts.train_capital_agent.train(tmp_path, iterations=2, **options)
    rewards = summary["rewards"]
    assert rewards[0] < 0.75
    assert rewards[-1] > 0.85
    assert len(azure.jobs) == 2
    assert summary["model"] in azure.models
    assert sorted(azure.deployments) == ["base", "base-ft_v01", "base-ft_v02"]
    # What was trained are whole conversations, the tool and its call among them.
    (line, *_) = next(iter(azure.contents.values()))
    assert line["tools"][0]["function"]["name"] == "country_capital_lookup"
    roles = [message["role"] for message in line["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    assert summary["calls"] == summary["calls_trained"] + sum(summary["calls_excluded"].values())


def test_dry_run_says_what_a_job_would_cost(azure, tmp_path, monkeypatch) -> None:
    options = name_resource(azure, monkeypatch)
    summary = scripts.train_capital_agent.train(
        tmp_path, dry_run=True, price_per_million_tokens=5.0, **options
    )
    assert summary["cost"] > 0
    assert json.loads(Path(summary["file"]).read_text().splitlines()[0])["messages"]
    assert azure.jobs == azure.files == {}


def test_dev_runs_from_the_command_line() -> None:
    done = run_script(SCRIPT, "--dev", "--scripted")
    assert done.stdout == "5 of 5 questions were answered right\n"


def test_missing_resource_is_said_by_the_names_of_its_variables() -> None:
    done = run_script(SCRIPT, "--dry-run", code=2)
    missing = "AZURE_OPENAI_ENDPOINT, AZURE_SUBSCRIPTION_ID, AZURE_RESOURCE_GROUP"
    assert f"set {missing}" in done.stderr
