"""Several prompts at once, per agent, and the description of a tool."""

import asyncio
import random
from typing import Any

import pytest

import agl
from agl.errors import ConfigError
from agl_apo import GEPA
from agl_apo.models import Models
from agl_apo.options import PromptOptions
from agl_testing.echo_llm import EchoLLM
from agl_views.runs.prompt_runs import PromptRuns

RESOURCES = {
    "plan_prompt": agl.PromptTemplate(template="Plan {request}."),
    "get_rooms": agl.PromptTemplate(template="Lists rooms."),
    "untouched": agl.PromptTemplate(template="Leave me, {request}."),
}


@agl.rollout
async def team(task: dict[str, Any], rollout: agl.Rollout, resources: agl.NamedResources) -> float:
    """Two agents talk; each word 'better' in a prompt is worth a half."""
    planner, tool = resources["plan_prompt"], resources["get_rooms"]
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


def tasks(kind: str) -> list[dict[str, str]]:
    return [{"request": f"{kind} {number}"} for number in range(12)]


def improve(seen: list[dict[str, Any]]) -> Any:
    def reply(body: dict[str, Any]) -> str:
        text = body["messages"][0]["content"]
        seen.append({"model": body["model"], "text": text})
        if body["model"] == "critic":
            return "Say it better."
        if "Lists rooms" in text:
            return "Lists rooms better."
        return "Plan {request} better."

    return reply


OF_PLANNER, OF_TOOL = "the prompt of the planner", "the description of the tool get_rooms"


def gepa(llm, tmp_path, **options):
    targets, places = ["plan_prompt", "get_rooms"], {"run_dir": str(tmp_path), "base_url": llm.url}
    return GEPA(api_key="none", targets=targets, **places, **options)


def test_several_prompts_are_improved_and_each_critique_sees_its_agent(fit, tmp_path) -> None:
    seen: list[dict[str, Any]] = []
    with EchoLLM(improve(seen)) as llm:
        algorithm = agl.APO(
            **{"base_url": llm.url, "api_key": "none", "run_dir": str(tmp_path)},
            **{"gradient_model": "critic", "apply_edit_model": "editor"},
            **{"beam_width": 2, "branch_factor": 2, "beam_rounds": 2},
            targets={"plan_prompt": OF_PLANNER, "get_rooms": OF_TOOL},
            agents={"plan_prompt": "planner"},
        )
        store = fit(algorithm, team, resources=RESOURCES, train=tasks("train"), val=tasks("val"))
    assert algorithm.result.accepted
    latest = asyncio.run(store.get_latest_resources()).resources
    assert {name: prompt.template for name, prompt in latest.items()} == {
        "plan_prompt": "Plan {request} better.",
        "get_rooms": "Lists rooms better.",
        "untouched": "Leave me, {request}.",
    }
    assert algorithm.get_best_prompt("get_rooms").template == "Lists rooms better."
    critiques = [one["text"] for one in seen if one["model"] == "critic"]
    of_planner = [text for text in critiques if OF_PLANNER in text]
    of_tool = [text for text in critiques if OF_TOOL in text]
    assert of_planner
    assert of_tool
    assert all("I am the planner." in text for text in of_planner)
    assert not any("I am the booker." in text for text in of_planner)
    assert (tmp_path / "best_prompt.get_rooms.txt").read_text() == "Lists rooms better."


def test_parent_of_a_merged_candidate_is_the_one_that_it_differs_from_least(fit, tmp_path) -> None:
    def reflect(body: dict[str, Any]) -> str:
        asked.append(body)
        is_tool = "Lists rooms" in body["messages"][0]["content"]
        what = "Lists rooms" if is_tool else "Plan {request}"
        return f"```\n{what} {len(asked)}.\n```"

    @agl.rollout
    async def fickle(task: dict[str, Any], resources: agl.NamedResources) -> float:
        texts = [resources[name].template for name in ("plan_prompt", "get_rooms")]
        return random.Random(f"{task}{texts}").random()

    asked: list[Any] = []
    with EchoLLM(reflect) as llm:
        algorithm = gepa(llm, tmp_path, use_merge=True, max_evaluations=600)
        store = fit(algorithm, fickle, resources=RESOURCES, train=tasks("train"), val=tasks("val"))
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
    def reflect(body: dict[str, Any]) -> str:
        text = body["messages"][0]["content"]
        is_tool = "Lists rooms" in text
        return f"```\n{'Lists rooms' if is_tool else 'Plan {request}'} better.\n```"

    with EchoLLM(reflect) as llm:
        algorithm = gepa(llm, tmp_path, max_evaluations=300)
        fit(algorithm, team, resources=RESOURCES, train=tasks("train"), val=tasks("val"))
    assert algorithm.result.accepted
    prompts = {*algorithm.result.prompts.values()}
    assert prompts == {"Lists rooms better.", "Plan {request} better."}


def test_a_missing_key_is_named_in_whole_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"no client.*[^.]\. Give api_key"):
        Models(PromptOptions(), 1.0)
