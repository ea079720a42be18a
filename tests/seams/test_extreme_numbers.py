"""The largest rewards that can be read, and log-probabilities that no model gives, end no run."""

import json
import math

import pytest
from opentelemetry import trace

import agl
from agl.emitter import MAX_REWARD

from .grpo_run import TASKS

pytest.importorskip("torch")
pytest.importorskip("agl_adapters")

from .table_model import build_model, build_tokenizer


@pytest.mark.parametrize("normalise_std", [True, False])
def test_extreme_numbers_leave_metrics_and_weights_finite(tmp_path, normalise_std: bool) -> None:
    import aiohttp
    import torch

    calls = 0

    @agl.rollout
    async def agent(task: str, llm: agl.LLM) -> float:
        nonlocal calls
        calls += 1
        body = {
            "model": llm.model,
            "messages": [{"role": "user", "content": task}],
            **llm.sampling_parameters,
        }
        async with (
            aiohttp.ClientSession(raise_for_status=True) as session,
            session.post(f"{llm.endpoint}/chat/completions", json=body),
        ):
            pass
        odd = {
            "gen_ai.request.model": llm.model,
            "prompt_token_ids": [1, 2],
            "response_token_ids": [3],
            "logprobs.content": json.dumps([{"logprob": -1e300 if calls % 2 else 1e300}]),
        }
        with trace.get_tracer("agent").start_as_current_span("odd", attributes=odd):
            pass
        return [MAX_REWARD, 0.0, -MAX_REWARD][calls % 3]

    algorithm = agl.GRPO(
        model=build_model,
        tokenizer=build_tokenizer,
        steps=2,
        groups_per_step=2,
        group_size=3,
        max_tokens=1,
        learning_rate=1e-3,
        normalise_std=normalise_std,
        device="cpu",
        torch_threads=1,
        show_progress=False,
        run_dir=str(tmp_path / "run"),
    )
    store = agl.InMemoryLightningStore()
    agl.Trainer(algorithm=algorithm, store=store, strategy="shm", n_runners=1).fit(agent, TASKS)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    trained = [step for step in steps if "grad_norm" in step]
    assert len(trained) == 2, steps
    for step in trained:
        assert all(math.isfinite(v) for v in step.values() if isinstance(v, float))
        assert step["calls/excluded/malformed"] == 6
    (*_, last) = sorted((tmp_path / "run" / "checkpoints").glob("*"))
    from transformers import AutoModelForCausalLM

    weights = AutoModelForCausalLM.from_pretrained(last).parameters()
    assert all(torch.isfinite(each).all() for each in weights)
