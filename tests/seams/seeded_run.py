"""A short seeded run of the quickstart's task, in processes: ``seeded_run.py OUT OPTIONS``.

OPTIONS is JSON: ``algorithm`` (one of agl-torch, sft or dpo), ``runners``, and its options;
``store``, the address of a store's server, and ``judge``, that of a gateway whose model ``judge``
each rollout asks once. The agent takes its time, so that calls come in another order each time, and
in other batches.
"""

import asyncio
import contextlib
import functools
import json
import os
import random
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/quickstart"))

from quickstart import openai_client
from world import House, build_model, build_tokenizer, split_tasks

import agl
from agl_runs.replay import replay as train_again


@agl.rollout
async def find_the_cat(task: dict, main_llm: agl.LLM, judge: agl.LLM | None = None) -> float:
    """That of the quickstart, delayed; few find the cat, so longer names of rooms get more."""
    client = openai_client(asyncio.get_running_loop()).with_options(base_url=main_llm.endpoint)
    house, delay = House(**task), random.SystemRandom()
    messages = [{"role": "user", "content": house.first_message()}]
    letters = 0
    while not house.is_over:
        await asyncio.sleep(delay.random() * 0.02)
        answer = await client.chat.completions.create(
            model=main_llm.model, messages=messages, **main_llm.sampling_parameters
        )
        room = answer.choices[0].message.content
        letters += len(room)
        messages.append({"role": "assistant", "content": room})
        messages.append({"role": "user", "content": house.look(room)})
    if judge is not None:
        client = client.with_options(base_url=judge.endpoint, api_key=judge.api_key, max_retries=2)
        await client.chat.completions.create(model=judge.model, messages=messages)
    return house.reward + letters / 100


def store_of(out: Path, url: str | None) -> agl.LightningStore:
    """That of a server, or a file."""
    return agl.LightningStoreClient(url) if url else agl.SqliteLightningStore(out / "store.db")


def in_place(out: Path) -> dict[str, Any]:
    """Options of the algorithms of agl-torch."""
    tiny = {"model": functools.partial(build_model, 0), "tokenizer": build_tokenizer}
    size = {"groups_per_step": 4, "group_size": 8, "epochs": 2}
    return {**tiny, **size, "device": "cpu", "torch_threads": 1}


def fine_tuning(out: Path) -> dict[str, Any]:
    """Options of SFT and DPO."""
    model = out / "model"
    if not model.exists():  # a run that goes on has it
        partial = out / f"partial-{os.getpid()}"  # of two starts at once each makes one
        build_model(0).save_pretrained(partial)
        build_tokenizer().save_pretrained(partial)
        with contextlib.suppress(OSError):
            partial.rename(model)
    size = {"tasks_per_iteration": 8, "rollouts_per_task": 6, "epochs": 2}
    return {"model": str(model), "engine": "trl", "server": "torch", **size}


if __name__ == "__main__":
    out, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    kind, runners = options.pop("algorithm"), options.pop("runners")
    replay = options.pop("replay", None)
    store_url, judge_url = options.pop("store", None), options.pop("judge", None)
    store = store_of(out, store_url)
    key = os.environ.get("AGL_GATEWAY_TOKEN")
    judge = agl.ProxyLLM(endpoint=f"{judge_url}/v1", model="judge", api_key=key)
    given = fine_tuning(out) if kind in ("sft", "dpo") else in_place(out)
    common = {"learning_rate": 1e-3, "max_tokens": 1, "evaluation": {"temperature": 0.5}}
    common |= {"show_progress": False}
    if kind == "distillation":
        given["teacher"] = functools.partial(build_model, 1)
    train_tasks, held_out_tasks = split_tasks()
    trainer = agl.Trainer(
        algorithm={"type": kind, **common, **given, **options},
        store=store,
        initial_resources={"judge": judge} if judge_url else None,
        strategy={"type": "cs", "server_port": 0},
        n_runners=runners,
        concurrency=16,
        run_dir=out / "run",  # a run that is there goes on
    )
    if replay is None:
        trainer.fit(find_the_cat, train_tasks, val_dataset=held_out_tasks[:8])
    else:
        print(json.dumps(asdict(train_again(trainer, find_the_cat, replay))))
