"""Hello and twenty questions; hello is trained by Tinker's real SDK at a local Tinker."""

import gc
import importlib.util
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from example_bench import EXAMPLES, environment, memory_store, run_script, scripts

import agl
from agl_testing.echo_llm import EchoLLM

for module in ("agl_tinker", "tinker", "transformers"):
    pytest.importorskip(module)

FOLDER = EXAMPLES / "tinker"
FAKE = Path(__file__).parents[1] / "plugins" / "tinker"
NOUN: Any = {"category": "animal", "answer": "camel", "search_enabled": True}


def load_fake(name: str) -> Any:
    """A module of the plugin's tests."""
    spec = importlib.util.spec_from_file_location(name, FAKE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    monkeypatch.delenv("TINKER_API_KEY", raising=False)


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("unit-7", 1),
        ("I am unit-7.", 1),
        ("I am the unit-7", 1 / 2),
        ("unit-7 unit-7 unit-7", 1 / 3),
        ("unit-70", 0),
        ("", 0),
    ],
)
def test_name_alone_is_the_best_answer(answer: str, reward: float) -> None:
    assert scripts.hello.reward_of(answer, "unit-7") == pytest.approx(reward)


@pytest.fixture
def service() -> Iterator[dict[str, Any]]:
    """Options of ``Tinker`` for a local one, whose model sees nothing but the last word."""
    words = load_fake("words")
    server = load_fake("tinker_server").Tinker(len(words.WORDS), words.WORDS.index(words.END))
    server.server.start()
    size = {"learning_rate": 1.0, "rollouts_per_task": 16, "iterations": 4, "max_tokens": 2}
    yield {
        **{"base_model": "tiny/table", "api_key": server.key, "base_url": server.server.url},
        **{"tokenizer": words.build_tokenizer(), "show_progress": False, **size},
    }
    server.server.stop()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()  # the SDK leaves a connection of each of its clients to it


def check(summary: dict[str, Any]) -> None:
    assert summary["rewards"][0] < 0.5
    assert summary["rewards"][-1] > summary["rewards"][0] + 0.3
    assert summary["calls"] == summary["calls_trained"] + sum(summary["calls_excluded"].values())


def test_hello_learns_its_name_in_one_click(service: dict[str, Any], tmp_path: Path) -> None:
    check(scripts.hello.oneclick(["red"], runners=2, run_dir=str(tmp_path), **service))


def test_hello_learns_with_store_algorithm_and_runners_apart(service, tmp_path, monkeypatch):
    token = "a-token-for-the-test"
    variables = environment(AGL_SERVER_TOKEN=token)
    monkeypatch.setenv("AGL_SERVER_TOKEN", token)
    with memory_store(variables) as url:
        command = [sys.executable, FOLDER / "hello.py", "runner", "--url", url, "--n-runners", "1"]
        runner = subprocess.Popen(command, env=variables)
        try:
            check(scripts.hello.run_algorithm(url, ["red"], run_dir=str(tmp_path), **service))
        finally:
            runner.send_signal(2)
            runner.wait(timeout=60)


def test_nouns_of_the_two_splits_are_apart() -> None:
    train, test = scripts.q20_agent.load_nouns("train"), scripts.q20_agent.load_nouns("test")
    assert (len(train), len(test)) == (50, 10)
    assert not {noun["answer"] for noun in train} & {noun["answer"] for noun in test}
    assert {noun["search_enabled"] for noun in train} == {True, False}


@pytest.mark.parametrize(
    ("said", "parsed"),
    [
        ("question: Is it alive?", ("question", "Is it alive?")),
        ("I think so.\nGuess: a camel", ("guess", "a camel")),
        ("is it a camel?", ("", "is it a camel?")),
    ],
)
def test_lines_of_the_player_are_parsed(said: str, parsed: tuple[str, str]) -> None:
    assert scripts.q20_agent.parse(said) == parsed


async def game(player: Any, *, search: bool = True) -> tuple[Any, list[str]]:
    """A game with a scripted player, and what the helper was asked."""
    from openai import AsyncOpenAI

    asked: list[str] = []

    def helper(request: dict[str, Any]) -> str:
        asked.append(request["messages"][0]["content"])
        return "Certainly, yes."

    with EchoLLM(player) as llm, EchoLLM(helper) as other:
        async with (
            AsyncOpenAI(base_url=llm.url, api_key="none") as one,
            AsyncOpenAI(base_url=other.url, api_key="none") as two,
        ):
            return await scripts.q20_agent.play(
                NOUN,
                scripts.q20_agent.Model(one, "p"),
                scripts.q20_agent.Model(two, "h"),
                search=search,
            ), asked


async def test_game_is_won_by_a_right_guess() -> None:
    lines = iter(["search: humps", "question: Is it alive?", "guess: a dog", "guess: The camel."])
    played, asked = await game(lambda request: next(lines))
    assert (played.solved, played.turns, played.searches) == (True, 3, 1)
    assert played.reward == pytest.approx(0.95)
    assert "Query: humps" in asked[0]
    assert "The secret is: camel" in asked[1]
    assert len(asked) == 2


async def test_secret_is_never_told_to_the_player() -> None:
    seen: list[str] = []

    def player(request: dict[str, Any]) -> str:
        seen.append(json.dumps(request["messages"]))
        return "what is it?"

    played, asked = await game(player)
    assert (played.solved, played.turns, played.reward) == (False, 20, 0)
    assert asked == []
    assert not [text for text in seen if "camel" in text]


async def test_search_without_leave_costs_a_turn() -> None:
    lines = iter(["search: humps", "guess: camel"])
    played, asked = await game(lambda request: next(lines), search=False)
    assert (played.turns, played.searches, asked) == (2, 0, [])


@pytest.mark.parametrize("options", [[], ["--search"]])
def test_dry_run_plays_games_from_the_command_line(options: list[str]) -> None:
    done = run_script(FOLDER / "q20_train.py", "dryrun", "--scripted", *options)
    *lines, last = done.stdout.splitlines()
    assert last == "5 games have a reward; 5 are won"
    # Only the player's calls are there to be learned from.
    assert all(line.endswith("left out: ") for line in lines)


def test_model_is_measured_and_results_are_appended(tmp_path: Path) -> None:
    out = tmp_path / "logs" / "results.jsonl"
    arguments = ("--model", "echo", "--output-file", out, "--search", "--games", 3)
    with EchoLLM(scripts.scripted_llm.scripted_reply) as llm:
        for _ in range(2):
            openai = {"OPENAI_BASE_URL": llm.url, "OPENAI_API_KEY": "none"}
            done = run_script(FOLDER / "q20_evaluate.py", *arguments, **openai)
    assert done.stdout.startswith("100% of the games were won")
    results = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(results) == 6
    assert {(result["model"], result["solved"]) for result in results} == {("echo", True)}


@pytest.mark.parametrize("model", ["qwen4b", "qwen30b"])
def test_settings_are_taken(model: str) -> None:
    trainer = agl.Trainer(algorithm=scripts.q20_train.tinker(model))
    assert type(trainer.algorithm).__name__ == "Tinker"
    assert scripts.q20_train.Q20Agent(search=True).search
