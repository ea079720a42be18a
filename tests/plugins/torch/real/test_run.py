"""A pretrained model is trained, measured, merged and served by the commands that people use."""

import json
import signal
import subprocess
import sys
import urllib.request

import pytest
import torch

AGENT = """
import agl
from openai import AsyncOpenAI

@agl.rollout
async def count(task, llm: agl.LLM) -> float:
    async with AsyncOpenAI(api_key="x", base_url=llm.endpoint, max_retries=0) as client:
        messages = [{"role": "user", "content": task["q"]}]
        answer = await client.chat.completions.create(
            model=llm.model, messages=messages, **llm.sampling_parameters)
    return len(answer.choices[0].message.content) / 100
"""
CONFIG = """
agent: counting:count
train: tasks.jsonl
algorithm:
  type: grpo
  model: {folder}
  steps: 1
  checkpoint_every: 1
  seed: 1
  groups_per_step: 2
  group_size: 4
  max_tokens: 8
  max_model_tokens: 256
  learning_rate: 1e-3
  lora_rank: 8
  device: cpu
strategy: shm
run_dir: out
"""
STEP = "out/checkpoints/step-000001"


@pytest.fixture
def config(folder, tmp_path):
    (tmp_path / "counting.py").write_text(AGENT)
    (tmp_path / "tasks.jsonl").write_text('{"q": "Say one word."}\n{"q": "What is 2+3?"}\n')
    (tmp_path / "agl.yaml").write_text(CONFIG.format(folder=folder))


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

    command = [sys.executable, "-c", "from agl.cli import main; main()", "serve", tmp_path / STEP]
    command += ["--port", "0", "--name", "mine", "--weights-version", "3"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = next(row for row in process.stderr if "is served at" in row).split()[-1]
            messages = [{"role": "user", "content": "Hi"}]
            body = {"model": "mine", "messages": messages, "max_tokens": 3}
            asked = urllib.request.Request(
                f"{url}/chat/completions",
                json.dumps({**body, "return_token_ids": True}).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(asked) as got:
                answer = json.load(got)
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 0
    assert 1 <= len(answer["choices"][0]["token_ids"]) <= 3
    assert answer["choices"][0]["weight_versions"][0]["version"] == "3"
