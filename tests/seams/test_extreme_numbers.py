"""The largest rewards that can be read, and log-probabilities that no model gives, end no run."""

import asyncio
import itertools
import json
import math

import pytest
from opentelemetry import trace

import agl
from agl.utils.rewards import MAX_REWARD
from agl_records.credit import CreditRule

from .grpo_run import TASKS

pytest.importorskip("torch")
pytest.importorskip("agl_adapters")

from agl_records.ledger.documents import query_parts

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
        estimator={"normalise_std": normalise_std},
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


async def test_a_credit_that_is_no_number_is_refused_and_the_run_goes_on(tmp_path) -> None:
    class Odd(CreditRule):
        def assign(self, calls, spans):
            reward = agl.find_final_reward(spans)
            return [agl.Credit(reward=reward or math.nan) for _ in calls]

    rewards = itertools.count()

    @agl.rollout
    async def agent(task: str, llm: agl.LLM) -> float:
        from openai import AsyncOpenAI

        async with AsyncOpenAI(base_url=llm.endpoint, api_key="none") as client:
            messages = [{"role": "user", "content": task}]
            await client.chat.completions.create(
                model=llm.model, messages=messages, **llm.sampling_parameters
            )
        return float(next(rewards))

    algorithm = agl.GRPO(
        model=build_model,
        tokenizer=build_tokenizer,
        steps=1,
        groups_per_step=1,
        group_size=3,
        max_tokens=1,
        device="cpu",
        show_progress=False,
        run_dir=str(tmp_path / "run"),
    )
    store = agl.InMemoryLightningStore()
    adapter = {"type": "rows", "credit": Odd()}
    trainer = agl.Trainer(algorithm=algorithm, store=store, strategy="shm", adapter=adapter)
    await asyncio.to_thread(trainer.fit, agent, TASKS[:1])
    accounts = await query_parts(store)
    assert sum(bool(one.trained) for one in accounts) == 2
    ((refused,),) = (one.excluded for one in accounts if not one.trained)
    said = f"credit rule 'Odd' gave nan to call 1 of 1 of rollout '{refused.rollout_id}'"
    assert refused.reason == "malformed"
    assert said in refused.detail
