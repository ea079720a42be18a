import asyncio
import dataclasses
import json
import logging
import re
from typing import Any

import pytest
from click.testing import CliRunner
from openai import AsyncOpenAI

import agl
from agl.emitter import reward_attributes
from agl.errors import AlgorithmError, ConfigError
from agl.semconv import AGL_ANNOTATION
from agl_apo.command import command
from agl_apo.evaluate import Candidate, Evaluator
from agl_apo.journal import StoreJournal
from agl_apo.options import PromptOptions
from agl_learning.run.folder import begin_generation, hold_run, read_generation
from agl_testing.echo_llm import EchoLLM, RawReply


def rollouts_of(algorithm: Any, split: str) -> list[Any]:
    """Those that evaluated a prompt on tasks of a split."""
    found = asyncio.run(algorithm.get_store().query_rollouts())
    return [one for one in found if one.metadata["prompts"].get("split") == split]


def prompts(*arguments: str) -> str:
    """What ``agl prompts`` writes."""
    return CliRunner().invoke(command, arguments, catch_exceptions=False).output


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"val": 3}, "val_dataset has 3 held-out tasks, too few .* takes 9"),
        ({"val": 0}, "val_dataset.* It has no tasks"),
        ({"resources": {}}, "there is no PromptTemplate to improve"),
    ],
)
def test_what_cannot_conclude_is_no_run(world, fit, worker, options, tmp_path, given, said):
    class Watch(agl.Hook):
        async def on_run_start(self) -> None:
            begun.append(1)

    begun: list[int] = []
    if "val" in given:
        given = {"val": world.make_tasks(1, given["val"], "val")}
    with pytest.raises(ConfigError, match=said):
        fit(agl.APO(**options), worker, hooks=[Watch()], **given)
    assert begun == []
    assert not (tmp_path / "best").exists()


def test_better_prompts_are_found_with_how_sure(
    world, fit, worker, options, proposer, tmp_path, caplog
):
    caplog.set_level(logging.INFO, "agl.apo")
    algorithm = fit(agl.APO(**{**options, "beam_rounds": 4}), worker)
    store, result, best = algorithm.get_store(), algorithm.result, algorithm.get_best_prompt()
    of_run = fit.result
    assert len(of_run.steps) == 4
    assert [step for step, _ in of_run.held_out] == [0, 4]
    assert of_run.held_out_before == result.decision.seed_mean
    assert sum(of_run.rollouts.values()) == result.evaluations
    assert result.accepted
    assert world.quality(best.template) > 0.4 > world.quality(world.SEED_PROMPT)
    assert 0 < result.decision.lower <= result.decision.gain <= result.decision.upper
    rollouts = asyncio.run(store.query_rollouts())
    assert {rollout.metadata["prompts"]["kind"] for rollout in rollouts} == {"evaluation"}
    assert len(rollouts) == result.evaluations
    kinds = [one.body["kind"] for one in asyncio.run(store.query_documents("prompts"))]
    seeds = {rollout.metadata.get("seed") for rollout in rollouts} - {None}
    assert len(seeds) == result.evaluations
    assert "accepted: mean reward" in caplog.text

    # Every rollout of the store is told of, by what it was for.
    said = re.search(r"the rollouts of this search are (\d+) evaluations, (\d+) of", caplog.text)
    questions = re.search(r"it asked models in (\d+) calls", caplog.text)
    assert int(said[1]) == len(rollouts)
    held_out = [one for one in rollouts if one.metadata["prompts"].get("split") == "held_out"]
    assert int(said[2]) == len(held_out)
    assert int(questions[1]) == kinds.count("critique") + kinds.count("edit")
    known = {"critique", "edit", "start", "candidate", "round", "decision", "result"}
    assert {*kinds} == known

    # The prompt is the store's latest, and a file.
    latest = asyncio.run(store.get_latest_resources())
    assert latest.resources["prompt_template"] == best
    assert latest.resources_id == result.resources_id
    assert (tmp_path / "best" / "best_prompt.prompt_template.txt").read_text() == best.template
    written = json.loads((tmp_path / "best" / "result.json").read_text())
    assert written["decision"]["lower"] == result.decision.lower

    # The decision used held-out tasks only, and models never saw one.
    assert {rollout.input["request"].split()[0] for rollout in held_out} == {"val"}
    seen = [str(body["messages"]) for body in proposer.requests]
    assert any("train 1" in text for text in seen)
    assert not any("val " in text for text in seen)


def test_tasks_of_both_datasets_have_no_part_in_the_decision(world, fit, worker, options, caplog):
    tasks = world.make_tasks(1, 40, "train")
    given = {"train": tasks[:25], "val": [*tasks[20:], tasks[30], tasks[31]]}
    algorithm = fit(agl.APO(**{**options, "beam_rounds": 1}), worker, **given)
    assert "7 of 22 tasks of val_dataset have no part in the decision: 5 are in" in caplog.text
    assert "and 2 are copies of others" in caplog.text
    held_out = [r.input for r in rollouts_of(algorithm, "held_out")]
    assert held_out
    assert all(task in tasks[25:] for task in held_out)


def test_no_better_candidate_leaves_the_seed(world, fit, worker, options) -> None:
    with EchoLLM(world.Proposer(1, paraphrase_only=True)) as llm:
        algorithm = fit(agl.APO(**{**options, "base_url": llm.url, "beam_rounds": 2}), worker)
    assert not algorithm.result.accepted
    assert algorithm.get_best_prompt().template == world.SEED_PROMPT
    latest = asyncio.run(algorithm.get_store().get_latest_resources())
    assert latest.resources["prompt_template"].template == world.SEED_PROMPT


def test_run_is_not_continued_with_other_options(fit, worker, options) -> None:
    store = agl.InMemoryLightningStore()
    fit(agl.APO(**{**options, "beam_rounds": 1}), worker, store=store)
    changed = r"begun with another beam: \[2, 3, 1\] then, \[2, 3, 2"
    with pytest.raises(AlgorithmError, match=changed):
        # The trainer is forced, and the algorithm sees it all the same.
        fit(agl.APO(**{**options, "beam_rounds": 2}), worker, store=store, force=True)


def test_prompts_command_shows_tree_difference_curve_and_result(fit, worker, options, tmp_path):
    file = tmp_path / "store.db"
    algorithm = agl.APO(**options)
    asyncio.run(fit(algorithm, worker, store=agl.SqliteLightningStore(file)).get_store().close())
    shown = prompts(str(file))
    assert "seed  " in shown
    assert "r1.1.1" in shown
    assert "+++ prompt_template (r" in shown
    assert "+Known:" in shown
    assert "95 % interval" in shown
    [run] = json.loads(prompts(str(file), "--json"))
    assert run["evaluations"] == algorithm.result.evaluations
    assert len(run["rounds"]) == 3
    leader = next(n for n in run["nodes"] if n["candidate_id"] == algorithm.result.leader)
    assert leader["critique"].startswith("The prompt should say more")
    assert leader["parent"]
    assert leader["evaluations"] > 0
    with pytest.raises(ConfigError, match="no prompt run 'other'; there is 'apo'"):
        prompts(str(file), "--name", "other")


def test_prompt_with_placeholders_that_the_task_lacks_is_named(fit, worker, options) -> None:
    resources = {"prompt_template": agl.PromptTemplate(template="Book {room} for {request}.")}
    with pytest.raises(
        AlgorithmError,
        match=r"all 16 evaluations .* failed, in up to 3 runs each.*KeyError.*asks for 'room'; the "
        "task has keys 'needs', 'request'",
    ):
        fit(agl.APO(**options), worker, resources=resources)


def test_template_that_cannot_be_read_is_refused_before_anything_runs(fit, worker, options) -> None:
    store = agl.InMemoryLightningStore()
    resources = {"prompt_template": agl.PromptTemplate(template='Answer {"like": this}')}
    with pytest.raises(ConfigError, match="prompt 'prompt_template' is no f-string template"):
        fit(agl.APO(**options), worker, resources=resources, store=store)
    assert len(asyncio.run(store.query_rollouts())) == 0


def test_edit_that_breaks_the_template_is_dropped(world, fit, worker, options, tmp_path):
    answer, edits = world.Proposer(1, hit_rate=1.0, repeatable=True), 0

    def break_some(body: dict[str, Any]) -> str:
        nonlocal edits
        edits += body["model"] == "editor"
        return "Do as you like." if body["model"] == "editor" and edits % 2 else answer(body)

    file = tmp_path / "store.db"
    with EchoLLM(break_some) as llm:
        algorithm = agl.APO(**{**options, "base_url": llm.url, "beam_rounds": 1})
        fit(algorithm, worker, store=(store := agl.SqliteLightningStore(file)))
        asyncio.run(store.close())
    [run] = json.loads(prompts(str(file), "--json"))
    reasons = [node["dropped"] for node in run["nodes"] if node["dropped"]]
    assert "the edit breaks 'prompt_template': it lost the placeholder 'request'" in reasons
    assert any(node["evaluations"] and node["parent"] for node in run["nodes"])


def test_endpoint_that_returns_nothing_stops_the_run(fit, worker, options):
    why = "none of the 3 critiques .*model 'critic' returned nothing"
    with EchoLLM(lambda body: "") as llm, pytest.raises(AlgorithmError, match=why):
        fit(agl.APO(**{**options, "base_url": llm.url}), worker)


def test_run_whose_endpoint_failed_goes_on_when_it_is_back(world, fit, worker, options) -> None:
    store, answer = agl.InMemoryLightningStore(), world.Proposer(1, repeatable=True)
    down = True

    def reply(body: dict[str, Any]) -> Any:
        return RawReply(400, b'{"error": {"message": "down"}}') if down else answer(body)

    with EchoLLM(reply) as llm:
        options = {**options, "base_url": llm.url, "beam_rounds": 1}
        with pytest.raises(AlgorithmError, match=r"\bdown\b.* Running again continues here"):
            fit(agl.APO(**options), worker, store=store)
        down = False
        algorithm = fit(agl.APO(**options), worker, store=store)
    assert algorithm.result is not None


def test_dataset_smaller_than_a_batch_is_used_again_and_again(world, fit, worker, options) -> None:
    algorithm = agl.APO(**{**options, "beam_rounds": 1, "gradient_batch_size": 8})
    on_train = rollouts_of(fit(algorithm, worker, train=world.make_tasks(1, 3, "train")), "search")
    of_seed = [r for r in on_train if r.metadata["prompts"]["candidate"] == "seed"]
    assert len(of_seed) >= 8
    assert {r.input["request"] for r in on_train} == {"train 0", "train 1", "train 2"}


def test_budget_that_cannot_conclude_is_refused_with_the_number_that_would_do(fit, worker, options):
    store = agl.InMemoryLightningStore()
    said = r"max_evaluations=100 .* Give max_evaluations=(\d+)"
    with pytest.raises(ConfigError, match=said) as e:
        fit(agl.APO(**options, max_evaluations=100), worker, store=store)
    assert len(asyncio.run(store.query_rollouts())) == 0
    enough = int(str(e.value).split("Give max_evaluations=")[1].split()[0])
    algorithm = fit(agl.APO(**options, max_evaluations=enough), worker)
    assert algorithm.result.evaluations <= enough
    with pytest.raises(ConfigError, match=f"Give max_evaluations={enough} "):
        fit(agl.APO(**options, max_evaluations=enough - 1), worker)


@pytest.mark.parametrize(
    ("reward", "said"),
    [(7.0, r"reward 7, outside reward_range=\(0, 1\)"), (None, "succeeded without a reward")],
)
def test_rewards_out_of_range_and_missing_rewards_are_named(fit, options, reward, said) -> None:
    @agl.rollout
    def gives(task: Any, prompt_template: agl.PromptTemplate) -> float | None:
        return reward

    with pytest.raises(AlgorithmError, match=said):
        fit(agl.APO(**options), gives)


def test_prompt_with_which_the_agent_fails_is_out_of_the_race(world, fit, options, caplog) -> None:
    @agl.rollout
    def picky(task: Any, prompt_template: agl.PromptTemplate) -> float:
        if world.facts_of(prompt_template.template):
            raise ValueError("this prompt breaks the parser")
        return 0.5

    algorithm = fit(agl.APO(**{**options, "beam_rounds": 1, "branch_factor": 1}), picky)
    assert algorithm.result.best == "seed"
    assert algorithm.result.decision is None
    assert "candidate r1.1.1 is out of the race: 4 of its 4 evaluations failed" in caplog.text
    assert "this prompt breaks the parser" in caplog.text


# In the first tasks of new candidates, or in the share of the round.
@pytest.mark.parametrize(("first", "what"), [(1, "3 of 4"), (5, "3 of 8")])
def test_race_that_nobody_survives_stops_the_run_with_the_reason(fit, options, first, what) -> None:
    @agl.rollout
    def tiring(task: Any, prompt_template: agl.PromptTemplate, rollout: agl.Rollout) -> float:
        place = rollout.metadata["prompts"]
        if place["split"] == "search" and first <= place["position"] < first + 3:
            raise OSError("503")
        return 0.5

    sizes = {"gradient_batch_size": 1, "branch_factor": 1}
    with pytest.raises(
        AlgorithmError,
        match=f"APO: {what} evaluations of the first prompt failed, in up to 3 runs each, most "
        "often with 'agent: OSError: 503'. Mend that and run again",
    ):
        fit(agl.APO(**{**options, **sizes}), tiring)


def test_run_that_failures_stopped_goes_on_when_they_are_mended(world, fit, worker, options):
    store, down = agl.InMemoryLightningStore(), True

    @agl.rollout
    async def sometimes(task: Any, resources: Any, rollout: agl.Rollout) -> float:
        if down and rollout.metadata["prompts"]["split"] == "search":
            raise OSError("503")
        return await worker.training_rollout_async(task, resources, rollout)

    said = (
        "all 4 evaluations of the first prompt failed, in up to 3 runs each, most often with "
        "'agent: OSError: 503'. Mend that and run again"
    )
    with pytest.raises(AlgorithmError, match=said):
        fit(agl.APO(**options), sometimes, store=store)
    down = False
    algorithm = fit(agl.APO(**options), sometimes, store=store)
    assert algorithm.result.failed_evaluations == 0
    unbroken = fit(agl.APO(**options), worker)
    assert algorithm.result.decision == unbroken.result.decision
    assert algorithm.result.prompts == unbroken.result.prompts


@pytest.mark.parametrize(("status", "calls"), [(401, 16), (403, 16), (404, 16), (400, 48)])
def test_evaluation_whose_model_refuses_the_key_is_not_run_again(fit, options, status, calls):
    @agl.rollout
    async def asks(task: Any, prompt_template: agl.PromptTemplate) -> float:
        async with AsyncOpenAI(base_url=llm.url, api_key="wrong", max_retries=0) as client:
            said = [{"role": "user", "content": prompt_template.format(**task)}]
            await client.chat.completions.create(model="policy", messages=said)
        return 1.0

    with EchoLLM(lambda body: RawReply(status, b"{}")) as llm:
        with pytest.raises(AlgorithmError, match=f"all 16 evaluations .* Error code: {status}"):
            fit(agl.APO(**options), asks)
        assert len(llm.requests) == calls


class NotFoundError(Exception):
    """Of a tool."""


def test_evaluation_whose_tool_does_not_find_something_is_run_again(fit, options):
    calls: list[Any] = []

    @agl.rollout
    def looks(task: Any, prompt_template: agl.PromptTemplate) -> float:
        calls.append(task)
        raise NotFoundError("no such index yet")

    with pytest.raises(AlgorithmError, match=r"all 16 evaluations .* no such index yet"):
        fit(agl.APO(**options), looks)
    assert len(calls) == 48


async def test_late_evaluation_that_ends_while_it_is_cancelled_counts_as_it_ended() -> None:
    class Late(agl.InMemoryLightningStore):
        async def update_rollout(self, rollout_id: str, **values: Any) -> Any:
            if values.get("status") == "cancelled":  # it ends at this very moment
                span = span_of_reward(rollout_id, claimed.attempt.attempt_id)
                await self.add_many_spans([span])
                await self.update_attempt(rollout_id, "latest", status="succeeded")
            return await super().update_rollout(rollout_id, **values)

    store, seed = Late(), Candidate("seed", {})
    await store.update_resources("r", {})
    evaluator = Evaluator(
        StoreJournal(store, "run", "apo"),
        {"search": ["a task"], "held_out": []},
        PromptOptions(rollout_batch_timeout=1e-9),
        resources_ids={"seed": "r"},
    )
    waits = store.wait_for_rollouts

    async def claim_first(**values: Any) -> Any:
        nonlocal claimed
        claimed = await store.dequeue_rollout() or claimed
        return await waits(**values)

    claimed: Any = None
    store.wait_for_rollouts = claim_first  # a runner is quick, and then slow
    await evaluator.extend([seed], "search", [0])
    assert [score.reward for score in evaluator.known(seed, "search")] == [1.0]


def span_of_reward(rollout_id: str, attempt_id: str) -> agl.Span:
    attributes = reward_attributes({"reward": 1.0}, "reward")
    ids = {"rollout_id": rollout_id, "attempt_id": attempt_id, "sequence_id": 1}
    return agl.Span.from_attributes(name=AGL_ANNOTATION, attributes=attributes, **ids)


def test_evaluations_that_the_spent_budget_refused_count_for_nothing(world, fit, worker, options):
    class Spent(agl.APO):
        def is_budget_spent(self) -> bool:
            return refused > 0

    refused = 0

    @agl.rollout
    async def limited(task: Any, prompt_template: agl.PromptTemplate) -> float:
        nonlocal refused
        if world.facts_of(prompt_template.template):
            refused += 1
            raise RuntimeError("429: the budget is spent")
        return 0.0

    with pytest.raises(AlgorithmError, match=r"gateway's budget was spent after .* stay as they"):
        fit(Spent(**options), limited)


PENALTY = {"agent": "penalise", "penalty": -1.0}
NOWHERE = {"base_url": None, "api_key": None}


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"beam_width": "4"}, "beam_width must be a whole number; got '4'"),
        ({"reward_range": (0.0, float("inf"))}, "reward_range must be a finite number"),
        ({"confidence": 1.0}, "confidence must be above 0 and below 1"),
        ({"reward_range": (1.0, 1.0)}, "the first must be below the second"),
        ({"reward_range": "x"}, "reward_range must be two numbers; got 'x'"),
        ({"failures": PENALTY}, r"failures.penalty is -1, outside reward_range=\(0, 1\)"),
        ({"edit_template": {}}, "edit_template must be"),
        ({"critique_template": "{% if %}"}, "critique_template, line 1"),
        ({"edit_template": "missing.j2"}, "edit_template: cannot be read"),
        ({"async_openai_client": object()}, "give either a client, or base_url"),
        ({"async_openai_client": object(), **NOWHERE}, "an openai.AsyncOpenAI; got object"),
    ],
)
def test_wrong_options_are_refused(options, wrong, why) -> None:
    with pytest.raises(ConfigError, match=why):
        agl.APO(**{**options, **wrong})


def test_meta_prompt_that_asks_for_something_unknown_is_named(fit, worker, options) -> None:
    with pytest.raises(AlgorithmError, match=r"'mood' is undefined; there is .*experiments"):
        fit(agl.APO(**options, critique_template="In {{ mood }}: {{ prompt }}"), worker)


SECOND = "SECOND {{ experiments | length }} {{ prompt }}"


def test_custom_templates_reach_the_models(fit, worker, options, proposer, tmp_path) -> None:
    file = tmp_path / "edit.j2"
    file.write_text("EDIT {{ prompt }} BY {{ critique }}")
    templates = {"critique_template": ["FIRST {{ prompt }}", SECOND], "edit_template": str(file)}
    fit(agl.APO(**{**options, **templates, "beam_rounds": 1}), worker)
    seen = [body["messages"][0]["content"] for body in proposer.requests]
    assert {text.split()[0] for text in seen} == {"FIRST", "SECOND", "EDIT"}
    assert any(text.startswith("SECOND 4 Help with {request}.") for text in seen)


def test_a_run_that_goes_on_pays_for_nothing_again_and_has_each_metric_once(
    world, fit, worker, options, tmp_path
) -> None:
    class Told:
        def __init__(self) -> None:
            self.steps: list[dict[str, Any]] = []
            self.evaluations: list[dict[str, Any]] = []

        async def on_step_end(self, *, step: int, metrics: dict[str, Any]) -> None:
            self.steps.append(metrics)

        async def on_evaluation_end(self, *, step: int, metrics: dict[str, Any]) -> None:
            self.evaluations.append(metrics)

    store, found = agl.InMemoryLightningStore(), []
    with EchoLLM(world.Proposer(1, repeatable=True)) as llm:
        for place in ("best", "best", "again"):  # from the second on it only plays again
            given = {**options, "base_url": llm.url, "run_dir": str(tmp_path / place)}
            told = Told()
            algorithm = fit(agl.APO(**given), worker, store=store, hooks=[told])
            result, decision = algorithm.result, algorithm.result.decision
            rollouts = len(asyncio.run(store.query_rollouts()))
            found.append((rollouts, len(llm.requests), decision, result.prompts))
            assert [metrics["step"] for metrics in told.steps] == [1, 2, 3]
            assert told.steps[-1]["evaluations"] < result.evaluations
            [evaluation] = told.evaluations
            assert evaluation["val/reward/mean"] == decision.challenger_mean
            assert (evaluation["step"], evaluation["val/gain/lower"]) == (3, decision.lower)
            refused = dataclasses.replace(decision, accepted=False).metrics(3)
            assert refused["val/reward/mean"] == decision.seed_mean  # what the run ends with
            assert refused["val/reward/challenger"] == decision.challenger_mean
            lines = (tmp_path / place / "metrics.jsonl").read_text().splitlines()
            assert [json.loads(line) for line in lines] == [*told.steps, evaluation]
    assert found[0] == found[1] == found[2]


def test_folder_of_another_or_a_live_run_is_left_as_it_is(fit, worker, options, tmp_path) -> None:
    with hold_run(tmp_path / "best"):
        metrics = tmp_path / "best" / "metrics.jsonl"
        metrics.write_text('{"step": 1, "generation": 1}\n')
        with pytest.raises(AlgorithmError, match="in use by process"):
            fit(agl.APO(**options), worker)
    begin_generation(tmp_path / "best", algorithm="grpo")
    with pytest.raises(AlgorithmError, match="holds a run of 'grpo', and this is 'apo'"):
        fit(agl.APO(**options), worker)
    assert metrics.read_text() == '{"step": 1, "generation": 1}\n'


def test_files_go_into_the_folder_of_the_run_where_none_is_named(fit, worker, options, tmp_path):
    del options["run_dir"]
    algorithm = fit(agl.APO(**{**options, "beam_rounds": 1}), worker, run_dir=tmp_path / "run")
    assert algorithm.result.run_dir == str(tmp_path / "run")
    names = "best_prompt.prompt_template.txt metrics.jsonl result.json run.json summary.json"
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {*names.split()}
    assert read_generation(tmp_path / "run").algorithm == "apo"
