"""Several prompts at once, per agent, the description of a tool; GEPA over the same decision."""

import asyncio
import json
import random
from typing import Any

import pytest
from click.testing import CliRunner

import agl
from agl.errors import AlgorithmError, ConfigError
from agl_apo import GEPA
from agl_apo.command import command
from agl_apo.models import Models
from agl_apo.options import PromptOptions
from agl_testing.echo_llm import EchoLLM, RawReply
from agl_views.runs.prompt_runs import PromptRuns

RESOURCES = {
    "plan_prompt": agl.PromptTemplate(template="Plan {request}."),
    "tools/get_rooms": agl.PromptTemplate(template="Lists rooms."),
    "untouched": agl.PromptTemplate(template="Leave me, {request}."),
}


@agl.rollout
async def team(task: dict[str, Any], rollout: agl.Rollout, resources: agl.NamedResources) -> float:
    """Two agents talk; each word 'better' in a prompt is worth a half."""
    planner, tool = resources["plan_prompt"], resources["tools/get_rooms"]
    assert isinstance(planner, agl.PromptTemplate)
    assert isinstance(tool, agl.PromptTemplate)
    for name, text in (("planner", planner.format(**task)), ("booker", "Booked.")):
        call = {"operation.name": "chat", "agent.name": name, "prompt.0.role": "user"}
        call |= {"prompt.0.content": text, "completion.0.role": "assistant"}
        call["completion.0.content"] = f"I am the {name}."
        call["response.id"] = f"{rollout.rollout_id}-{name}"
        with agl.operation(name="chat", **{f"gen_ai.{key}": call[key] for key in call}):
            pass
    return 0.5 * ("better" in planner.template) + 0.5 * ("better" in tool.template)


TASKS = {kind: [{"request": f"{kind} {n}"} for n in range(12)] for kind in ("train", "val")}


def rewrite(body: dict[str, Any], how: object = "better") -> str:
    """The prompt that is asked about, rewritten."""
    is_tool = "Lists rooms" in body["messages"][0]["content"]
    return f"{'Lists rooms' if is_tool else 'Plan {request}'} {how}."


OF_PLANNER, OF_TOOL = "the prompt of the planner", "the description of the tool get_rooms"


def gepa(llm, tmp_path, **options):
    targets, places = (
        ["plan_prompt", "tools/get_rooms"],
        {"run_dir": str(tmp_path), "base_url": llm.url},
    )
    return GEPA(api_key="none", targets=targets, **places, **options)


def test_several_prompts_are_improved_and_each_critique_sees_its_agent(fit, tmp_path) -> None:
    def reply(body: dict[str, Any]) -> str:
        return "Say it better." if body["model"] == "critic" else rewrite(body)

    with EchoLLM(reply) as llm:
        algorithm = agl.APO(
            **{"base_url": llm.url, "api_key": "none", "run_dir": str(tmp_path)},
            **{"gradient_model": "critic", "apply_edit_model": "editor"},
            **{"beam_width": 2, "branch_factor": 2, "beam_rounds": 2},
            targets={"plan_prompt": OF_PLANNER, "tools/get_rooms": OF_TOOL},
            agents={"plan_prompt": "planner"},
        )
        store = fit(algorithm, team, resources=RESOURCES, **TASKS).get_store()
    assert algorithm.result.accepted
    latest = asyncio.run(store.get_latest_resources()).resources
    assert {name: prompt.template for name, prompt in latest.items()} == {
        "plan_prompt": "Plan {request} better.",
        "tools/get_rooms": "Lists rooms better.",
        "untouched": "Leave me, {request}.",
    }
    assert algorithm.get_best_prompt("tools/get_rooms").template == "Lists rooms better."
    asked = [(one["model"], one["messages"][0]["content"]) for one in llm.requests]
    critiques = [text for model, text in asked if model == "critic"]
    of_planner = [text for text in critiques if OF_PLANNER in text]
    of_tool = [text for text in critiques if OF_TOOL in text]
    assert of_planner
    assert of_tool
    assert all("I am the planner." in text for text in of_planner)
    assert not any("I am the booker." in text for text in of_planner)
    assert (tmp_path / "best_prompt.tools%2Fget_rooms.txt").read_text() == "Lists rooms better."


def test_parent_of_a_merged_candidate_is_the_one_that_it_differs_from_least(fit, tmp_path) -> None:
    def reflect(body: dict[str, Any]) -> str:
        return f"```\n{rewrite(body, len(llm.requests))}\n```"

    @agl.rollout
    async def fickle(task: dict[str, Any], resources: agl.NamedResources) -> float:
        texts = [resources[name].template for name in ("plan_prompt", "tools/get_rooms")]
        return random.Random(f"{task}{texts}").random()

    with EchoLLM(reflect) as llm:
        algorithm = gepa(llm, tmp_path, use_merge=True, max_evaluations=600)
        store = fit(algorithm, fickle, resources=RESOURCES, **TASKS).get_store()
    found = PromptRuns()
    asyncio.run(found.take_entries(store))
    [run] = found.runs.values()
    seed, *others = [one for one in run.candidates.values() if one.texts]
    known, merged = [seed.texts], 0
    for one in others:
        changed = [sum(one.texts[name] != text[name] for name in text) for text in known]
        parent = run.candidates[one.parent].texts
        assert sum(one.texts[name] != parent[name] for name in parent) == min(changed)
        merged += all(one.texts[name] in [text[name] for text in known] for name in one.texts)
        known.append(one.texts)
    assert merged > 1


def test_gepa_improves_several_prompts_too(fit, tmp_path) -> None:
    with EchoLLM(lambda body: f"```\n{rewrite(body)}\n```") as llm:
        algorithm = gepa(llm, tmp_path, max_evaluations=300)
        fit(algorithm, team, resources=RESOURCES, **TASKS)
    assert algorithm.result.accepted
    prompts = {*algorithm.result.prompts.values()}
    assert prompts == {"Lists rooms better.", "Plan {request} better."}


def test_a_missing_key_is_named_in_whole_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"no client.*[^.]\. Give api_key"):
        Models(PromptOptions(), 1.0)


@pytest.fixture
def gepa_options(proposer: EchoLLM, tmp_path) -> dict[str, Any]:
    places = {"base_url": proposer.url, "api_key": "none", "run_dir": str(tmp_path / "best")}
    return {**places, "reflection_model": "reflect", "max_evaluations": 500}


def test_gepa_is_found_by_name_and_improves_a_prompt(world, fit, worker, gepa_options, tmp_path):
    algorithm = agl.Trainer(algorithm={"type": "gepa", **gepa_options}).algorithm
    file = tmp_path / "store.db"
    asyncio.run(fit(algorithm, worker, store=agl.SqliteLightningStore(file)).get_store().close())
    result = algorithm.result
    assert result.evaluations <= 500
    assert result.accepted
    assert result.decision.lower > 0
    assert world.quality(algorithm.get_best_prompt().template) > 0.2
    output = CliRunner().invoke(command, [str(file), "--json"], catch_exceptions=False).output
    [run] = json.loads(output)
    assert run["algorithm"] == "gepa"
    assert run["evaluations"] == result.evaluations
    assert run["rounds"][0]["leader"] == "seed"
    assert run["rounds"][-1]["leader"] == result.leader


def test_continued_gepa_run_pays_for_nothing_again(world, fit, worker, gepa_options) -> None:
    store, found = agl.InMemoryLightningStore(), []
    with EchoLLM(world.Proposer(1, repeatable=True)) as llm:
        for _ in range(2):
            algorithm = fit(GEPA(**{**gepa_options, "base_url": llm.url}), worker, store=store)
            result, rollouts = algorithm.result, len(asyncio.run(store.query_rollouts()))
            found.append((rollouts, len(llm.requests), result.prompts, result.decision))
    assert found[0] == found[1]


def test_gepa_says_why_its_model_does_not_answer(fit, worker, gepa_options) -> None:
    with (
        EchoLLM(lambda body: RawReply(400, b'{"error": {"message": "no such model"}}')) as llm,
        pytest.raises(AlgorithmError, match="no such model"),
    ):
        fit(GEPA(**{**gepa_options, "base_url": llm.url}), worker)


def test_gepa_refuses_a_budget_that_cannot_conclude_or_is_none(fit, worker, gepa_options) -> None:
    with pytest.raises(ConfigError, match=r"max_evaluations=150 is too small .* Give max_eval"):
        fit(GEPA(**{**gepa_options, "max_evaluations": 150}), worker)
    with pytest.raises(ConfigError, match="max_evaluations must be a number"):
        GEPA(**{**gepa_options, "max_evaluations": None})
