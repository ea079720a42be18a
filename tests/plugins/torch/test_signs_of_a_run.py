"""A tokenizer that loses every prompt: told by a run, by its end, and by the doctor before."""

import json

import pytest

pytest.importorskip("torch")

from agl_learning.reports.findings import read_findings
from agl_runs.result import known_of

from .test_grpo import says_red


async def test_run_whose_prompts_are_all_lost_says_so(
    line, grpo, tmp_path, broken_tokenizer, caplog
):
    algorithm = grpo(tokenizer=broken_tokenizer, steps=3)
    await line(says_red, algorithm, ["one", "two", "three"])
    found = {one.code: one for one in read_findings(tmp_path / "run")[0]}
    assert list(found) == ["same_prompts", "unknown_tokens", "no_gradient"]
    assert found["same_prompts"].step == 1
    assert "reach the model as 1 sequence of tokens" in caplog.text
    assert algorithm.summary["calls_trained"] > 0  # were in a batch, and taught nothing
    result = known_of("", tmp_path / "run", None)
    assert result.trained is False
    assert result.warnings == [str(one) for one in found.values()]


async def test_run_whose_learning_rate_is_0_says_so_and_counts_as_untrained(line, grpo, tmp_path):
    await line(says_red, grpo(learning_rate=0.0, steps=1), ["one", "two", "three"])
    [found] = read_findings(tmp_path / "run")[0]
    assert str(found).startswith("learning_rate is 0, so no step changes the weights")
    result = known_of("", tmp_path / "run", None)
    assert (result.trained, result.warnings) == (False, [str(found)])


async def test_run_with_a_right_tokenizer_has_no_finding(line, grpo, tmp_path):
    algorithm = await line(says_red, grpo(steps=4), ["one", "two", "three"])
    assert algorithm.summary["warnings"] == []
    first = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[0])
    assert (first["prompts/different"], first["prompts/as_tokens"]) == (2, 2)
