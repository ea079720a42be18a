"""GRPO over the real line: store, runner, tracer, gateway, inference server, adapter."""

import json
import logging
import math

import pytest

import agl
import agl_torch
from agl.errors import AlgorithmError, ConfigError, UnknownComponentError
from agl.plugins.schema import schema_of
from agl_learning.reports.diagnostics import Finding
from agl_runs.result import known_of

from ..agents import complete  # noqa: TID252
from .conftest import COLOURS, build_model


async def ask(llm, content, **options):
    return await complete(llm, {"role": "user", "content": content}, **options)


@agl.rollout
async def says_red(task: str, llm: agl.LLM) -> float:
    """Reward for one word, whatever the task says."""
    return float(await ask(llm, task) == "red")


@agl.rollout
async def hot(task: str, llm: agl.LLM) -> float:
    """Asks at a temperature of its own, and has a reward for any colour."""
    return float(await ask(llm, task, temperature=3.0) in COLOURS)


def metrics(tmp_path, key="reward/mean"):
    text = (tmp_path / "run/metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    return [line for line in lines if key in line]


async def test_tokens_of_attempts_that_fail_are_counted(line, grpo, tmp_path):
    calls: list[int] = []

    @agl.rollout
    async def fails_at_last(task: str, llm: agl.LLM) -> float | None:
        reward = float(await ask(llm, task) == "red")
        calls.append(1)
        if len(calls) > 16 and len(calls) % 3 == 0:
            raise RuntimeError("after its call")
        return None if len(calls) > 16 and len(calls) % 3 == 1 else reward

    await line(fails_at_last, grpo(steps=2), ["one"])
    first, second = metrics(tmp_path, "time/step")
    assert first["calls/total"] == second["calls/total"] == 16
    assert second["calls/excluded/failed_attempt"] > 0
    assert second["calls/excluded/no_reward"] > 0
    assert second["tokens/given"] == first["tokens/given"]
    assert second["tokens/sampled"] == first["tokens/sampled"]


async def test_reward_rises_and_every_call_is_accounted_for(line, grpo, tmp_path):
    algorithm = await line(says_red, grpo(steps=12, epochs=2), ["one", "two", "three"], ["four"])
    steps = metrics(tmp_path, "loss/policy")
    rewards = algorithm.summary["rewards"]
    # 15 words: by chance about 1 in 15 answers is the right one.
    assert sum(rewards[:2]) / 2 < 0.5
    assert rewards[-1] > 0.8
    assert algorithm.summary["warnings"] == []
    first = metrics(tmp_path)[0]
    assert (first["prompts/different"], first["prompts/as_tokens"]) == (2, 2)
    for step in metrics(tmp_path):
        excluded = sum(count for key, count in step.items() if key.startswith("calls/excluded/"))
        assert step["calls/total"] == 16 == step["calls/trained"] + excluded
    for step in steps:
        # The recorded log-probabilities are those of the weights before the update.
        assert step["logprob_gap"] < 1e-4
        assert 0 < step["time/sampling"] < step["time/step"] - step["time/update"]
        assert step["version_lag"] == 0
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["calls"] == summary["calls_trained"] + sum(summary["calls_excluded"].values())
    assert summary["calls"] == 16 * len(rewards) + 2
    assert summary["calls_excluded"]["not_trained_mode"] == 2
    assert [step for step, _ in summary["val_rewards"]] == [0, len(rewards)]
    assert summary["val_rewards"][-1][1] == 1.0


@pytest.mark.parametrize(
    ("made", "options"),
    [
        ("CISPO", {}),
        ("GSPO", {"clip": {"low": 0.2, "high": 0.2}}),
        ("PPO", {"critic_learning_rate": 1e-2}),
        ("PPO", {"critic": "head", "critic_learning_rate": 1e-2, "kl": 1e-3}),
        ("RLOO", {"kl": 1e-3}),
        ("ReinforcePlusPlus", {"group_size": 1, "groups_per_step": 16, "learning_rate": 5e-3}),
        ("GRPO", {"loss": {"type": "dr_grpo", "constant": 1}, "schedule": "linear"}),
    ],
)
async def test_each_algorithm_learns_and_accounts_for_every_call(line, grpo, made, options):
    algorithm = grpo(made=getattr(agl_torch, made), steps=16, epochs=2, **options)
    await line(says_red, algorithm, ["one", "two", "three"], ["four"])
    rewards = algorithm.summary["rewards"]
    assert sum(rewards[:2]) / 2 < 0.5
    assert sum(rewards[-3:]) / 3 > 0.7
    ledger = await agl.load_ledger(line.store)
    ledger.check()
    assert ledger.trained
    assert set(ledger.reasons()) <= {"zero_advantage", "not_trained_mode"}


async def test_groups_that_taught_nothing_are_refilled_and_replayed(line, grpo, tmp_path):
    options = {"steps": 2, "groups_per_step": 3, "group_size": 2, "max_refills": 2, "seed": 3}
    algorithm = grpo(**options)
    await line(says_red, algorithm, ["one", "two", "three"])
    steps = metrics(tmp_path)
    assert steps[0]["groups/refilled"] > 0
    rollouts = await line.store.query_rollouts()
    assert len(rollouts) == 2 * sum(3 + step["groups/refilled"] for step in steps)
    again = grpo(**options)
    again.set_store(line.store)
    again.set_adapter(algorithm.get_adapter())
    replay = await again.replay(1)
    same = {one.what: one.same for one in replay.compared if one.same is not None}
    assert {"rows trained", "bins", "groups/refilled"} <= {*same}
    assert set(same.values()) == {True}


@pytest.mark.parametrize(
    ("fails", "message"),
    [
        (False, r"zero_advantage \(16\); mean reward 0.250"),
        (True, r"16 rollouts, 0 succeeded; failed with agent: .*Key"),
    ],
)
async def test_steps_that_train_nothing_end_with_the_reason(line, grpo, fails, message):
    @agl.rollout
    async def agent(task: str, llm: agl.LLM) -> float:
        if fails:
            raise KeyError("tool")
        await ask(llm, task)
        return 0.25

    with pytest.raises(AlgorithmError, match=message):
        await line(agent, grpo(steps=5, stopping={"max_idle_steps": 1}), ["one"])


async def test_the_agent_samples_at_the_temperature_that_is_trained_at(line, grpo, tmp_path):
    await line(hot, grpo(temperature=0.7), ["one", "two"], ["one"])
    assert all(step["logprob_gap"] < 1e-4 for step in metrics(tmp_path, "logprob_gap"))
    asked, name = set(), "openai.chat.completion"
    for one in await line.store.query_rollouts():
        for span in await line.store.query_spans(one.rollout_id, name=name):
            asked.add(span.attributes["gen_ai.request.temperature"])
    assert asked == {0.7, 0.0}


async def test_a_gateway_that_lets_agents_choose_their_temperature_is_noticed(line, grpo, caplog):
    class Unforced(agl.LLMProxy):
        def add_model(self, entry):
            super().add_model({**entry, "forced_parameters": {}})

    with caplog.at_level(logging.WARNING, "agl.torch"):
        await line(hot, grpo(), ["one", "two"], gateway=Unforced())
    warnings = [r.getMessage() for r in caplog.records if "another temperature" in r.getMessage()]
    assert len(warnings) == 1


async def test_a_reference_that_was_not_written_whole_is_none(line, grpo, tmp_path, monkeypatch):
    def fail(model, folder):
        (folder / "config.json").write_text("{")
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("agl_torch.checkpoint.save_model", fail)
        with pytest.raises(agl.errors.AglError, match="no space left"):
            await line(says_red, grpo(steps=1, kl=0.1), ["one"])
    assert not (tmp_path / "run/reference").exists()


async def test_resources_keep_what_the_trainer_was_given(line, grpo):
    algorithm = grpo(steps=1, resource_name="writer")
    algorithm.set_initial_resources({"prompt": agl.PromptTemplate(template="{x}")})
    await line(says_red, algorithm, ["one"])
    latest = await line.store.get_latest_resources()
    assert set(latest.resources) == {"prompt", "writer"}
    assert latest.resources["writer"].sampling_parameters == {"temperature": 1.0, "max_tokens": 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"estimator": "gae"}, "GRPO: estimator 'gae' gives each token .* 'ppo' has"),
        ({"temperature": 0}, "temperature must be above 0; got 0"),
        ({"entropy_bonus": -5.0}, "entropy_bonus must be at least 0"),
        ({"optimizer": {"weight_decay": -5.0}}, "optimizer.weight_decay must be at least 0"),
        ({"clip": {"low": 1.0}}, "clip.low must be at least 0 and below 1; got 1.0"),
        ({"server": {"max_model_tokens": -2}}, "server.max_model_tokens must be at least 2"),
    ],
)
def test_options_that_cannot_work_are_refused_at_once(grpo, options, message):
    with pytest.raises(ConfigError, match=message):
        grpo(**options)


NUMBERS = ("int", "float", "int | None", "float | None")
OF_NUMBERS = [option.name for option in schema_of(agl.GRPO).options if option.type in NUMBERS]


@pytest.mark.parametrize("name", OF_NUMBERS)
@pytest.mark.parametrize("value", [math.nan, math.inf, "1", True, [1]])
def test_every_number_must_be_one(grpo, name, value):
    with pytest.raises(ConfigError, match=f"GRPO: {name} must be a (whole |finite )?number; got"):
        grpo(**{name: value})


@pytest.mark.parametrize("credit", ["fnal", {"type": "fnal"}])
def test_an_unknown_credit_rule_is_refused_at_once(grpo, credit):
    with pytest.raises(UnknownComponentError, match="unknown credit 'fnal'"):
        grpo(credit=credit)
    with pytest.raises(ConfigError, match="GRPO: credit"):
        grpo(credit={"type": "final", "discuont": 1})


async def test_a_run_without_tasks_or_gateway_is_refused(grpo):
    with pytest.raises(ConfigError, match="there are no tasks"):
        await grpo().run([])
    with pytest.raises(ConfigError, match="needs a gateway"):
        await grpo().run(["one"])


@pytest.mark.parametrize(("option", "value"), [("every", 1), ("copies", 2), ("temperature", 1.0)])
async def test_evaluations_without_tasks_are_refused(line, grpo, tmp_path, option, value):
    given = {"evaluation": {option: value}}
    message = f"GRPO: evaluation.{option} is {value}, and there are no validation tasks"
    for val in (None, []):
        with pytest.raises(ConfigError, match=message):
            await line(says_red, grpo(**given), ["one"], val)
    trainer = agl.Trainer(algorithm=grpo(**given), run_dir=str(tmp_path / "of-trainer"))
    with pytest.raises(ConfigError, match=message):
        trainer.fit(agl.rollout(says_red), ["one"])
    assert not [*tmp_path.iterdir()]  # nothing was begun
    done = await line(says_red, grpo(steps=1, **given), ["one"], ["one"])
    assert len(done.summary["val_rewards"]) == 2


async def test_intervals_that_no_step_ends_are_told(line, grpo, caplog):
    given = {"evaluation": 2, "checkpoints": 3}
    await line(says_red, grpo(steps=2, **given), ["one"], ["one"])
    told = [one for one in caplog.messages if "does nothing" in one]
    assert len(told) == 1
    assert "GRPO: checkpoints.every is 3, and the run has 2 steps" in told[0]


async def test_a_model_that_cannot_be_loaded_is_refused_by_name(grpo, tmp_path):
    with pytest.raises(ConfigError, match="there is no such folder"):
        grpo(model=str(tmp_path / "nothing"), tokenizer=None)
    (tmp_path / "nothing").mkdir()
    algorithm = grpo(model=str(tmp_path / "nothing"), tokenizer=None)
    algorithm.set_llm_proxy(agl.LLMProxy())
    algorithm.set_store(agl.InMemoryLightningStore())
    algorithm.set_adapter(agl.TraceToRows())
    with pytest.raises(ConfigError, match="cannot load the model"):
        await algorithm.run(["one"])


async def test_a_run_goes_on_with_its_own_model_or_not_at_all(line, grpo, tmp_path):
    one, other = (str(tmp_path / name / "final") for name in ("one", "other"))
    for model in (one, other):
        build_model().save_pretrained(model)
    await line(says_red, grpo(model=one, steps=1), ["one"])
    file = tmp_path / "run/run.json"
    record = json.loads(file.read_text())
    record["shape"].pop("folder", None)  # as starts of before wrote it
    record["shape"]["options"]["model"] = one
    file.write_text(json.dumps(record))
    with pytest.raises(ConfigError, match=r"options: model: .*one/final then, .*other/final now"):
        await line(says_red, grpo(model=other, resume_from=str(file.parent)), ["one"])
    again = await line(says_red, grpo(model=one, resume_from=str(file.parent)), ["one"])
    assert again.summary["steps"] == 2
    with pytest.raises(ConfigError, match=r"options: model: .*one/final then, .*other/final now"):
        await line(says_red, grpo(model=other, resume_from=str(file.parent), steps=3), ["one"])


async def test_a_run_goes_on_that_was_moved_with_its_model(line, grpo, tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    build_model().save_pretrained(old / "model")
    options = {"model": str(old / "model"), "run_dir": str(old / "run")}
    await line(says_red, grpo(**options, steps=1), ["one"])
    old.rename(new)
    again = grpo(model=str(new / "model"), run_dir=None, resume_from=str(new / "run"))
    assert (await line(says_red, again, ["one"])).summary["steps"] == 2


async def test_the_same_object_begins_anew_when_it_is_fitted_again(line, grpo, tmp_path):
    @agl.rollout
    async def bored(task: str, llm: agl.LLM) -> float:
        await ask(llm, task)
        return 0.5

    algorithm = grpo(steps=9, stopping={"max_idle_steps": 2})
    for name in ("one", "other"):
        algorithm.run_dir = str(tmp_path / name)
        with pytest.raises(AlgorithmError, match="in 2 steps in a row, up to step 2"):
            await line(bored, algorithm, ["one"])


async def test_a_run_that_loses_all_prompts_says_so(line, grpo, tmp_path, broken_tokenizer, caplog):
    algorithm = grpo(tokenizer=broken_tokenizer, steps=3)
    await line(says_red, algorithm, ["one", "two", "three"])
    found = {one.code: one for one in Finding.read(tmp_path / "run")[0]}
    assert list(found) == ["same_prompts", "unknown_tokens", "no_gradient"]
    assert found["same_prompts"].step == 1
    assert "reach the model as 1 sequence of tokens" in caplog.text
    assert algorithm.summary["calls_trained"] > 0  # were in a batch, and taught nothing
    result = known_of("", tmp_path / "run", None)
    assert result.trained is False
    assert result.warnings == [str(one) for one in found.values()]


async def test_run_whose_learning_rate_is_0_says_so_and_counts_as_untrained(line, grpo, tmp_path):
    await line(says_red, grpo(learning_rate=0.0, steps=1), ["one", "two", "three"])
    [found] = Finding.read(tmp_path / "run")[0]
    assert str(found).startswith("learning_rate is 0, so no step changes the weights")
    result = known_of("", tmp_path / "run", None)
    assert (result.trained, result.warnings) == (False, [str(found)])
