"""A short seeded run of an algorithm that trains no weights here, in processes.

Started as ``seeded_remote_run.py OUT OPTIONS``. OPTIONS is JSON: ``algorithm`` (apo, gepa,
azure-sft or tinker), ``runners``, ``url`` of what ``remote_services.py`` serves for it, and options
of the algorithm; ``store`` and ``judge`` as for ``seeded_run.py``. The agent takes its time, so
that calls come in another order each time.
"""

import asyncio
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from answers import QUESTIONS, WORDS
from apo_world import SEED_PROMPT, make_tasks

import agl

PATIENCE_SECONDS = 60.0
WORKER = "worker"
judge: agl.ProxyLLM | None = None


async def ask(url: str, key: str | None, **body: Any) -> str:
    """The answer of a model."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with (
        aiohttp.ClientSession(raise_for_status=True, headers=headers) as session,
        session.post(f"{url}/chat/completions", json=body) as response,
    ):
        return (await response.json())["choices"][0]["message"]["content"]


async def converse(llm: agl.LLM, rollout: agl.AttemptedRollout, **body: Any) -> str:
    """The answer, some time later; the judge is asked as well, if there is one."""
    await asyncio.sleep(random.SystemRandom().random() * 0.02)
    answer = await ask(llm.endpoint, llm.api_key, **body, **llm.sampling_parameters)
    if judge is None:
        return answer
    url = judge.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            await ask(url, judge.api_key, model=judge.model, messages=body["messages"][-1:])
        except aiohttp.ClientError:  # it is started again
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.2)
        else:
            return answer


@agl.rollout
async def planted(
    task: dict, prompt_template: agl.PromptTemplate, llm: agl.LLM, rollout: agl.AttemptedRollout
) -> float:
    """Reward 1 where the worker, who has the prompt, does the task."""
    messages = [
        {"role": "system", "content": prompt_template.template},
        {"role": "user", "content": json.dumps(task)},
    ]
    return float(await converse(llm, rollout, model=WORKER, messages=messages) == "done")


@agl.rollout
async def answering(task: str, main_llm: agl.LLM, rollout: agl.AttemptedRollout) -> float:
    """Reward 1 for the right word; for Tinker's table, the less the word is like the first one."""
    messages = [{"role": "user", "content": task}]
    answer = await converse(main_llm, rollout, model=main_llm.model, messages=messages)
    if task in QUESTIONS:
        return float(answer == QUESTIONS[task])
    first = answer.split()[:1]
    return WORDS.index(first[0]) / 4 if first and first[0] in WORDS else 0.0


def prompts(kind: str, url: str, out: Path) -> dict[str, Any]:
    """What a trainer of a prompt optimiser takes."""
    options: dict[str, Any] = {"base_url": url, "api_key": "none", "smallest_gain": 0.4}
    if kind == "apo":
        models = {"gradient_model": "critic", "apply_edit_model": "editor"}
        options |= {**models, "beam_width": 2, "branch_factor": 3, "beam_rounds": 5, "seed": 1}
    else:
        options |= {"reflection_model": "reflect", "max_evaluations": 300}
    worker = {"model": f"hosted_vllm/{WORKER}", "api_base": url}
    entry = {"model_name": WORKER, "litellm_params": worker, "send_seed": True}
    return {
        "algorithm": {"type": kind, **options},
        "llm_proxy": agl.LLMProxy(model_list=[entry]),
        "initial_resources": {"prompt_template": agl.PromptTemplate(template=SEED_PROMPT)},
    }


def azure(kind: str, url: str, out: Path) -> dict[str, Any]:
    """The same of ``azure-sft``."""
    from tests.plugins.azure.azure_server import Login

    options = {
        **{"endpoint": url, "management_url": url, "api_key": "key-of-acme-1234567890"},
        **{"base_deployment": "base", "base_model": "gpt-base-2026-01-01", "account_name": "acme"},
        **{"subscription_id": "sub-1", "resource_group": "group-1", "poll_seconds": 0.05},
        **{"iterations": 2, "rollouts_per_task": 6, "keep_fraction": 1.0, "min_reward": 1.0},
        **{"keep_deployment": False, "max_tokens": 8, "show_progress": False},
        "credential": Login("token-of-acme-0987654321"),
    }
    return {"algorithm": {"type": kind, **options}}


def tinker(kind: str, url: str, out: Path) -> dict[str, Any]:
    """The same of ``tinker``."""
    from tests.plugins.tinker.words import build_tokenizer

    options = {
        **{"base_model": "tiny/table", "api_key": "tml-key-of-acme-1234567890", "base_url": url},
        **{"tokenizer": build_tokenizer(), "learning_rate": 0.3, "iterations": 3, "epochs": 2},
        **{"rollouts_per_task": 8, "batch_size": 16, "max_tokens": 2, "evaluation": 2},
        "show_progress": False,
    }
    return {"algorithm": {"type": kind, **options}}


SCENES: dict[str, Any] = {
    "apo": (prompts, planted, make_tasks(0, 28, "train"), make_tasks(0, 29, "val")),
    "gepa": (prompts, planted, make_tasks(0, 8, "train"), make_tasks(0, 29, "val")),
    "azure-sft": (azure, answering, [*QUESTIONS], [*QUESTIONS]),
    "tinker": (tinker, answering, ["one", "two", "three"], ["one", "two"]),
}


if __name__ == "__main__":
    out, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    kind, runners, url = (options.pop(name) for name in ("algorithm", "runners", "url"))
    del options["deterministic"]  # others serve and train
    store_url, judge_url = options.pop("store", None), options.pop("judge", None)
    file = out / "store.db"
    store = agl.LightningStoreClient(store_url) if store_url else agl.SqliteLightningStore(file)
    if judge_url:
        key = os.environ.get("AGL_GATEWAY_TOKEN")
        judge = agl.ProxyLLM(endpoint=f"{judge_url}/v1", model="judge", api_key=key)
    make, agent, train_tasks, val_tasks = SCENES[kind]
    given = make(kind, url, out)
    given["algorithm"] |= options
    given |= {"strategy": {"type": "cs", "server_port": 0}, "n_runners": runners}
    given |= {
        "store": store,
        "concurrency": 16,
        "run_dir": out / "run",
    }  # one that is there goes on
    agl.Trainer(**given).fit(agent, train_tasks, val_dataset=val_tasks)
