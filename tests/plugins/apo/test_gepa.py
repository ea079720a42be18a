"""GEPA over the same store, budget and decision."""

import asyncio
import json
from typing import Any

import pytest
from click.testing import CliRunner

import agl
from agl.errors import AlgorithmError, ConfigError
from agl_apo.command import command
from agl_testing.echo_llm import EchoLLM, RawReply

pytest.importorskip("gepa")

from agl_apo import GEPA


@pytest.fixture
def gepa_options(proposer: EchoLLM, tmp_path) -> dict[str, Any]:
    places = {"base_url": proposer.url, "api_key": "none", "run_dir": str(tmp_path / "best")}
    return {**places, "reflection_model": "reflect", "max_evaluations": 500}


def test_gepa_is_found_by_name_and_improves_a_prompt(world, fit, worker, gepa_options, tmp_path):
    algorithm = agl.Trainer(algorithm={"type": "gepa", **gepa_options}).algorithm
    file = tmp_path / "store.db"
    asyncio.run(fit(algorithm, worker, store=agl.SqliteLightningStore(file)).close())
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
            algorithm = GEPA(**{**gepa_options, "base_url": llm.url})
            fit(algorithm, worker, store=store)
            result, rollouts = algorithm.result, len(asyncio.run(store.query_rollouts()))
            found.append((rollouts, len(llm.requests), result.prompts, result.decision))
    assert found[0] == found[1]


def test_gepa_says_why_its_model_does_not_answer(fit, worker, gepa_options) -> None:
    with (
        EchoLLM(lambda body: RawReply(400, b'{"error": {"message": "no such model"}}')) as llm,
        pytest.raises(AlgorithmError, match="no such model"),
    ):
        fit(GEPA(**{**gepa_options, "base_url": llm.url}), worker)


def test_gepa_refuses_a_budget_that_cannot_conclude(fit, worker, gepa_options) -> None:
    with pytest.raises(ConfigError, match=r"max_evaluations=150 is too small .* Give max_eval"):
        fit(GEPA(**{**gepa_options, "max_evaluations": 150}), worker)


def test_a_search_without_an_end_is_refused(gepa_options):
    with pytest.raises(ConfigError, match="max_evaluations must be a number"):
        GEPA(**{**gepa_options, "max_evaluations": None})
