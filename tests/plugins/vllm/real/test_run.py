"""Adapters that the real vLLM loads while it runs, and a run whose vLLM is killed in a step."""

import json

import aiohttp
import psutil
import pytest
import torch
from peft import LoraConfig

import agl
from agl.errors import AlgorithmError
from agl_models.processes.engines import EngineServer

from .conftest import ARGUMENTS


async def ask(url, content, **fields):
    body = {"messages": [{"role": "user", "content": content}], **fields}
    async with (
        aiohttp.ClientSession(raise_for_status=True) as http,
        http.post(f"{url}/chat/completions", json=body) as response,
    ):
        return await response.json()


async def test_adapter_of_each_update_is_loaded_while_the_server_runs(weights, tmp_path):
    model = weights.model
    model.add_adapter(LoraConfig(r=3, lora_alpha=6, target_modules="all-linear"))
    weights.change("lora_B", 0.05)
    server = EngineServer(
        *("vllm", tmp_path / "serving", tmp_path / "log", model.save_pretrained),
        *(ARGUMENTS, 600.0, {"dtype": "float32"}),
        shares_gpu=False,
        base=weights.folder,
        lora_rank=3,
    )
    # Longer than a block of the cache, so that the server knows the prompt from before.
    prompt = "Count on: " + " ".join(map(str, range(200)))
    asked = {"temperature": 0.0, "max_tokens": 8, "logprobs": True, "return_token_ids": True}
    differences = []
    async with server.serving() as served:
        for _ in range(2):
            url = served.litellm_params["api_base"]
            answer = await ask(url, prompt, model="policy", **asked)
            (choice,) = answer["choices"]
            said = torch.tensor([one["logprob"] for one in choice["logprobs"]["content"]])
            of_tokens = answer["prompt_token_ids"], choice["token_ids"]
            assert (weights.logprobs(*of_tokens) - said).abs().max() < 1e-3
            with server.updating():
                weights.change("lora_B", 0.05)
            differences.append((weights.logprobs(*of_tokens) - said).abs().max())
    assert min(differences) > 0.05
    assert {one.name for one in (tmp_path / "serving").glob("*.safetensors")} == {
        "adapter_model.safetensors"
    }


def servers() -> list[psutil.Process]:
    """Those that this process has started, each before what it has started itself."""
    guards = psutil.Process().children()
    guards = [one for one in guards if "agl_models.processes.guard" in one.cmdline()]
    return [process for guard in guards for process in guard.children(recursive=True)]


async def test_run_whose_vllm_is_killed_in_a_step_goes_on_with_that_step(weights, line, tmp_path):
    model = weights.model  # its embeddings apart from its head, see choose-an-algorithm.md
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model.config.tie_word_embeddings = False
    model.save_pretrained(tmp_path / "model")
    weights.tokenizer.save_pretrained(tmp_path / "model")
    calls, killed = [], []

    @agl.rollout
    async def short(task: str, llm: agl.LLM) -> float:
        calls.append(task)
        if len(calls) == 7:  # of the second step
            killed.extend(servers())
            killed[0].kill()
        answer = await ask(llm.endpoint, task, model=llm.model, **llm.sampling_parameters)
        return -float(len(answer["choices"][0]["message"]["content"]))

    def grpo(**place):
        return agl.GRPO(
            model=str(tmp_path / "model"),
            **place,
            server={"type": "vllm", "arguments": ARGUMENTS[:1]},
            **{"steps": 3, "groups_per_step": 2, "group_size": 2, "max_tokens": 8, "seed": 1},
            **{"dtype": "float32", "learning_rate": 5e-4},
            show_progress=False,
        )

    tasks = ["Name a colour.", "Name an animal.", "Name a town."]
    with pytest.raises(AlgorithmError, match=r"server 'vllm' ended with exit code (137|-9)"):
        await line(short, grpo(run_dir=str(tmp_path / "run")), tasks)
    assert len(killed) > 1
    assert not psutil.wait_procs(killed, timeout=30)[1]
    await line(short, grpo(resume_from=str(tmp_path / "run")), tasks)
    text = (tmp_path / "run/metrics.jsonl").read_text()
    steps = [one for one in map(json.loads, text.splitlines()) if "loss/policy" in one]
    assert [step["step"] for step in steps] == [1, 2, 3]
    # What vLLM computes, with the weights of each update, is what the trainer does.
    assert max(step["logprob_gap"] for step in steps) < 1e-3
    (await agl.load_ledger(line.store)).check()
    assert not servers()
