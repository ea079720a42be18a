"""``tinker`` over the real line and Tinker's real SDK, against a local service that learns."""

import asyncio
import copy
import itertools
import json
import logging
import re
import shutil
import sys
from pathlib import Path

import pytest
from tests.interpreter import python

import agl
from agl.errors import AlgorithmError, ConfigError, StoppedError, install_line

from ..agents import ask, says_red  # noqa: TID252
from ..conftest import everything_written  # noqa: TID252
from ..line import end_after_a_step  # noqa: TID252

# The SDK leaves a connection of each of its clients to the garbage collector.
Tinker = pytest.importorskip("agl_tinker.algorithm").Tinker

pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

TASKS = ["one", "two", "three"]


@pytest.fixture
def run(line):
    async def run(algorithm, train=TASKS, val=None):
        return await line(says_red, algorithm, train, val)

    return run


def cut_before(algorithm, event, **values):
    """Forget the checkpoint, and the notes from one on, as a kill before it would."""
    shutil.rmtree(Path(algorithm.run_dir) / "checkpoints")
    if event == "trained":
        return
    path = Path(algorithm.run_dir) / "notes.jsonl"
    lines, wanted = path.read_text().splitlines(), {"event": event, **values}
    cut = next(n for n, text in enumerate(lines) if wanted.items() <= json.loads(text).items())
    path.write_text("".join(f"{one}\n" for one in lines[:cut]))


async def test_reward_rises_and_every_call_is_accounted_for(service, tinker, run, tmp_path):
    algorithm = await run(tinker(iterations=6, evaluation=6, seed=1), val=["two"])
    summary = algorithm.summary
    assert summary["rewards"][0] < 0.4
    assert summary["rewards"][-1] > 0.6
    assert [number for number, _ in summary["val_rewards"]] == [0, 6]
    assert summary["val_rewards"][-1][1] == 1.0
    assert service.losses == ["importance_sampling"] * 6
    assert summary["calls"] == summary["calls_trained"] + sum(summary["calls_excluded"].values())
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    steps = [one for one in map(json.loads, lines) if "train/loss" in one]
    # What was recorded is what the weights that are trained would have said.
    assert all(one["train/logprob_gap"] < 1e-5 for one in steps)
    assert [one["train/gradient_steps"] for one in steps] == [1] * 6
    # The newest two versions are kept, for training and for sampling.
    assert sorted(path[-4:] for path in service.saved) == ["v005", "v005", "v006", "v006"]
    assert summary["model"] in service.saved
    assert service.finished == ["success"]


async def test_a_run_that_a_hook_ends_is_a_success_at_its_provider(service, tinker, line):
    algorithm = await line(says_red, end_after_a_step(tinker(iterations=3)), TASKS)
    assert (algorithm.summary["iterations"], service.finished) == (1, ["success"])


async def test_ids_beyond_the_vocabulary_are_never_sent(service, tinker, run):
    drawn, numbers = service.draw, itertools.count()

    def draw(*given):
        tokens, logprobs, stop = drawn(*given)
        if next(numbers) % 4 == 0:
            tokens[-1] = service.size
        return tokens, logprobs, stop

    service.draw = draw
    algorithm = await run(tinker(iterations=1))
    summary = algorithm.summary
    assert summary["calls"] == 24
    assert summary["calls_excluded"]["malformed"] == 6
    examples = Path(algorithm.run_dir) / "iterations/0001/examples.jsonl"
    sent = [json.loads(line) for line in examples.read_text().splitlines()]
    assert sent
    assert all(max(one["token_ids"]) < service.size for one in sent)


async def test_the_best_rows_are_imitated_with_cross_entropy(service, tinker, run):
    options = {"iterations": 3, "epochs": 2, "batch_size": 2}
    algorithm = await run(tinker(loss="cross_entropy", min_reward=1.0, **options))
    assert set(service.losses) == {"cross_entropy"}
    assert len(service.losses) > 6
    assert algorithm.summary["rewards"][-1] > 0.8


async def test_a_run_ends_though_the_sdk_waits_for_ever_as_it_closes(tinker, run, monkeypatch):
    """As it does if a heartbeat of its session is under way just then."""
    from tinker.lib.internal_client_holder import InternalClientHolder

    left = []

    async def waits(holder):
        left.append(holder._session_heartbeat_task)
        await asyncio.Event().wait()

    monkeypatch.setattr("agl_tinker.service.CLOSE_SECONDS", 0.2)
    monkeypatch.setattr(InternalClientHolder, "_async_cleanup", waits)
    algorithm = await asyncio.wait_for(run(tinker(iterations=1)), 60)
    assert algorithm.summary["rewards"]
    for heartbeat in left:  # which would warn in another test, minutes later
        heartbeat.get_loop().call_soon_threadsafe(heartbeat.cancel)
    assert left


async def test_ppo_in_several_steps_and_no_secret_is_written(
    service, tinker, run, line, tmp_path, caplog
):
    caplog.set_level(logging.DEBUG, "agl")
    algorithm = await run(tinker(loss="ppo", iterations=2, epochs=2))
    texts = [caplog.text, *await everything_written(line.store, tmp_path / "run")]
    assert not any(service.key in text for text in texts)
    assert service.losses == ["ppo"] * 4
    assert algorithm.summary["rewards"][1] > algorithm.summary["rewards"][0]


def rising(inputs):
    """Later tokens weigh more."""
    return (inputs.rewards_NT.cumsum(-1) + inputs.rollouts.mask_NT.cumsum(-1)) * 1.0


async def test_an_estimator_of_ones_own_weighs_each_token(service, tinker, run):
    pytest.importorskip("torch")
    algorithm = await run(tinker(estimator=f"{__name__}:rising", iterations=1))
    examples = Path(algorithm.run_dir) / "iterations/0001/examples.jsonl"
    rows = [json.loads(line) for line in examples.read_text().splitlines()]
    sampled = [[weight for weight in row["weights"] if weight] for row in rows]
    assert {tuple(each) for each in sampled if len(each) == 2} == {(1.0, 2.0), (1.0, 3.0)}


def test_the_default_estimator_needs_no_torch():
    code = """
import sys
sys.modules["torch"] = None
from agl.errors import ConfigError
from agl_tinker.algorithm import Tinker
Tinker("tiny/table")
try:
    Tinker("tiny/table", estimator="rloo")
except ConfigError as error:
    print(error)
"""
    said = python("-c", code, check=True).stdout
    assert said.startswith("Tinker: estimator 'rloo' needs torch, which is not installed.")


async def test_the_cost_is_stated_before_training(service, tinker, run, caplog):
    caplog.set_level(logging.INFO, "agl")
    algorithm = await run(tinker(dry_run=True, epochs=2, price_per_million_tokens=3.0))
    tokens = algorithm.summary["trained_tokens"]
    assert f"2 epochs: {tokens:,} trained tokens" in caplog.text
    assert algorithm.summary["cost"] == pytest.approx(tokens * 3e-6)
    assert service.losses == []
    asked = service.log.count("POST asample")
    # Meant seriously, the run goes on with the rollouts that it has.
    algorithm = await run(tinker(iterations=1, epochs=2))
    assert service.log.count("POST asample") == asked
    metrics = (Path(algorithm.run_dir) / "metrics.jsonl").read_text()
    assert json.loads(metrics.splitlines()[-1])["train/trained_tokens"] == tokens


async def test_training_over_the_limit_is_not_begun(service, tinker, run):
    with pytest.raises(StoppedError, match=r"max_trained_tokens is 10 .nothing was sent; raise it"):
        await run(tinker(max_trained_tokens=10))
    assert service.losses == []


async def test_a_key_that_expires_ends_the_run_and_a_new_one_goes_on(service, tinker, run):
    service.fail_after_steps, service.echo_key = 2, True
    with pytest.raises(ConfigError, match=r"401.*expired or wrong") as caught:
        await run(tinker(iterations=4))
    assert service.key not in str(caught.value)
    service.fail_after_steps = None
    algorithm = await run(tinker(iterations=4))
    # Version 1 was saved; version 2 was not, and is trained again from it.
    assert len(service.losses) == 5
    assert service.log.count("POST load_weights") == 1
    assert service.log.count("POST asample") == 4 * 24
    assert len(algorithm.summary["rewards"]) == 4
    assert algorithm.summary["rewards"][-1] > algorithm.summary["rewards"][0]


@pytest.mark.parametrize("event", ["trained", "saved"])
async def test_saved_weights_are_not_trained_again(service, tinker, run, event):
    algorithm = await run(tinker(iterations=1))
    cut_before(algorithm, event, version=1)
    again = await run(tinker(iterations=1))
    assert len(service.losses) == 1
    assert again.summary["model"] == algorithm.summary["model"]
    assert len(service.saved) == 2


async def test_weights_that_no_version_came_of_are_deleted(service, tinker, run):
    algorithm = await run(tinker(iterations=1))
    orphan = algorithm.summary["model"]
    cut_before(algorithm, "saved", version=1)
    del service.saved[orphan.replace("/weights/", "/sampler_weights/")]  # a kill came before
    again = await run(tinker(iterations=1))
    assert len(service.losses) == 2
    assert orphan not in service.saved
    assert again.summary["model"] in service.saved
    assert len(service.saved) == 2


async def test_a_training_that_fails_says_why(service, tinker, run):
    service.fail_training = "The sequence is longer than 64 tokens"
    with pytest.raises(AlgorithmError, match=r"could not train: .*longer than 64 tokens"):
        await run(tinker())
    # Nothing of it was kept; the next run trains.
    await run(tinker(iterations=1))
    assert len(service.losses) == 1


async def test_a_busy_service_is_waited_for(service, tinker, run, monkeypatch):
    service.busy, service.paused = 2, 3
    algorithm = await run(tinker(iterations=1))
    assert service.busy == service.paused == 0
    assert algorithm.summary["iterations"] == 1


async def test_equal_rewards_train_nothing_and_end_nothing(service, tinker, line):
    @agl.rollout
    async def always(task: str, llm: agl.LLM) -> float:
        await ask(llm, task)
        return 1.0

    dry = await line(always, tinker(dry_run=True), TASKS)
    assert (dry.summary["dry_run"], dry.summary["trained_tokens"]) == (True, 0)
    asked = service.log.count("POST asample")
    algorithm = await line(always, tinker(), TASKS)
    assert service.log.count("POST asample") == 2 * asked
    assert service.losses == []
    assert algorithm.summary["calls_excluded"] == {"zero_advantage": 48}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_model": "tiny/chair"}, "no model 'tiny/chair'; there are: tiny/table"),
        ({"api_key": "tml-another"}, r"401.*expired or wrong"),
        ({"api_key": "sk-1"}, "must start with the 'tml-' prefix"),
        ({"tokenizer": "bare"}, r"cannot render a conversation: .*chat_template"),
    ],
)
async def test_wrong_options_are_refused_at_once(service, tinker, run, tokenizer, options, message):
    if "tokenizer" in options:
        options = {"tokenizer": copy.deepcopy(tokenizer)}
        options["tokenizer"].chat_template = None
    with pytest.raises(ConfigError, match=message):
        await run(tinker(**options))
    assert service.log.count("POST asample") == 0


async def test_without_the_sdk_the_error_names_the_extra(tinker, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "tinker", None)
    monkeypatch.delitem(sys.modules, "agl_tinker.service", raising=False)
    with pytest.raises(ConfigError, match=re.escape(install_line("agl-tinker"))):
        await run(tinker())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "dpo"}, "loss is 'dpo'; expected importance_sampling"),
        ({"temperature": 0.7}, "at temperature 1, and temperature is 0.7"),
        ({"rollouts_per_task": 1}, "compares rollouts of one task"),
        ({"loss": "cross_entropy", "estimator": "rloo"}, "'rloo' is for the other losses"),
        ({"min_reward": 1.0}, "min_reward is for cross_entropy"),
        ({"lora": 0}, "lora.rank must be at least 1"),
        ({"lora": {"alpha": 8.0}}, "Tinker takes lora.rank alone"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Tinker("tiny/table", **options)
