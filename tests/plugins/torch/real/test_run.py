"""A pretrained model is trained, measured, merged and served by the commands that people use."""

import json
import signal
import subprocess

import openai
import pytest
import torch
from tests.interpreter import AGL, started

from ..conftest import write_project  # noqa: TID252

STEP = "out/checkpoints/step-000001"


@pytest.fixture
def config(folder, tmp_path):
    options = {"model": str(folder), "steps": 1, "checkpoints": {"every": 1}, "lora": {"rank": 8}}
    options |= {"max_tokens": 8, "server": {"max_model_tokens": 256}, "learning_rate": 1e-3}
    write_project(tmp_path, "len(text) / 100", ["Say one word.", "What is 2+3?"], **options)


@pytest.mark.timeout(600)
def test_a_step_with_an_adapter_is_kept_measured_merged_and_served(agl, config, folder, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from agl_torch.adapter import load_merged

    agl("run", "agl.yaml")
    (line,) = map(json.loads, (tmp_path / "out/metrics.jsonl").read_text().splitlines())
    assert line["calls/trained"] == line["calls/total"] == 8
    assert line["grad_norm"] > 0
    assert line["logprob_gap"] < 1e-3  # the sampler and the learner agree on what it said
    kept = sum(path.stat().st_size for path in (tmp_path / STEP).rglob("*"))
    assert kept < 64 * 2**20  # the adapter and its optimiser, of a model of 512 MiB

    found = json.loads(agl("eval", STEP, "val=tasks.jsonl", "--copies", "1", "--json"))
    assert [task["rollouts"] for task in found["tasks"]] == [1, 1]

    agl("merge", STEP, "whole")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "whole")
    ids = torch.tensor([tokenizer("The capital of France is")["input_ids"]])
    whole, checkpoint, start = (
        model(ids).logits
        for model in (
            AutoModelForCausalLM.from_pretrained(tmp_path / "whole"),
            load_merged(tmp_path / STEP, torch.float32),
            AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        )
    )
    assert torch.equal(whole, checkpoint)
    assert not torch.allclose(whole, start, atol=1e-2)

    command = [*AGL, "serve", tmp_path / STEP, "--port", "0", "--name", "mine"]
    command += ["--weights-version", "3"]
    with started(*command, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = next(row for row in process.stderr if "is served at" in row).split()[-1]
            with openai.OpenAI(base_url=url, api_key="-", max_retries=0) as client:
                answer = client.chat.completions.create(
                    model="mine",
                    messages=[{"role": "user", "content": "Hi"}],
                    max_tokens=3,
                    extra_body={"return_token_ids": True},
                )
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 0
    assert 1 <= len(answer.choices[0].token_ids) <= 3
    assert answer.choices[0].weight_versions[0]["version"] == "3"


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_run_goes_on_bit_for_bit(agl, config, tmp_path):
    run = ("run", "agl.yaml", "algorithm.deterministic=true", "algorithm.server.max_batch_size=1")
    agl(*run, "algorithm.steps=2", "run_dir=straight")
    agl(*run)
    agl(*run, "algorithm.steps=2")
    lines = map(json.loads, (tmp_path / "out/metrics.jsonl").read_text().splitlines())
    assert [(line["step"], line["generation"]) for line in lines] == [(1, 1), (2, 2)]
    kept = "checkpoints/step-000002/adapter_model.safetensors"
    assert (tmp_path / "out" / kept).read_bytes() == (tmp_path / "straight" / kept).read_bytes()


@pytest.mark.nightly
@pytest.mark.parametrize("thinks", [False, True])
def test_calls_share_a_row_unless_thoughts_are_dropped(agl, config, tmp_path, tokenizer, thinks):
    if thinks:  # an answer begins with <think>, of which later prompts show nothing
        tokenizer.chat_template += "{% if add_generation_prompt %}<think>\n{% endif %}"
    tokenizer.save_pretrained(tmp_path / "own")
    (tmp_path / "two.jsonl").write_text('{"q": "Say one word.", "turns": 2}\n')
    agl("run", "agl.yaml", "train=two.jsonl", "algorithm.tokenizer=own")
    (line,) = map(json.loads, (tmp_path / "out/metrics.jsonl").read_text().splitlines())
    assert line["calls/trained"] > 8
    assert (line["rows"] == line["calls/trained"]) is thinks
