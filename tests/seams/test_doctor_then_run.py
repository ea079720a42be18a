"""``agl doctor FILE && agl run FILE`` starts every run whose file is right."""

import json
import sys
from typing import Any

import pytest

from agl_testing.echo_llm import EchoLLM

pytest.importorskip("agl_apo")
pytest.importorskip("agl_inspect")
pytest.importorskip("gepa")

AGENT = """
import agl

@agl.rollout
def agent(task, prompt_template: agl.PromptTemplate) -> float:
    return float("word" in prompt_template.format(question=task["question"]))

@agl.rollout
def bare(task) -> float:
    return 0.5
"""
PROMPT = "resources: {prompt: {type: prompt_template, template: 'Help. {question}'}}\n"
OPTIONS = {
    "apo": "beam_rounds: 1, beam_width: 1, branch_factor: 1, val_batch_size: 4",
    "gepa": "max_evaluations: 100, reflection_minibatch_size: 1",
}


@pytest.mark.parametrize("algorithm", ["apo", "gepa", "baseline"])
def test_doctor_passes_a_right_file_and_its_run_ends_well(algorithm, tmp_path, monkeypatch, agl):
    for name, first in (("train", 0), ("val", 100)):
        tasks = [json.dumps({"question": f"{number}?"}) for number in range(first, first + 12)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(tasks))
    (tmp_path / "planted.py").write_text(AGENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with EchoLLM(lambda _: "```\nSay one word. {question}\n```") as llm:
        file = f"train: train.jsonl\nval: val.jsonl\nstrategy: shm\nrun_dir: out\n{PROMPT}"
        if algorithm == "baseline":
            file += "agent: planted:bare\nalgorithm: baseline\n"
        else:
            given = f"base_url: '{llm.url}', api_key: x, {OPTIONS[algorithm]}"
            file += f"agent: planted:agent\nalgorithm: {{type: {algorithm}, {given}}}\n"
        (tmp_path / "agl.yaml").write_text(file)
        code, said, _ = agl("doctor", "agl.yaml", "--json")
        found: dict[str, Any] = json.loads(said)
        assert (code, found["trainable"]) == (0, True), found["findings"]
        assert {one["code"] for one in found["findings"]} == {"no_calls"}
        assert found["findings"][0]["level"] != "error"
        assert found["rollout"]["input"]["question"].endswith("?")
        ran = agl("run", "agl.yaml")
        assert ran.code == 0, ran.err
    sys.modules.pop("planted", None)
