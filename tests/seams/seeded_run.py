"""A short seeded run of the quickstart, in processes: ``seeded_run.py OUT RUNNERS OPTIONS``.

OPTIONS is JSON: options of GRPO. The agent takes its time, so that calls come in another order each
time, and in other batches.
"""

import asyncio
import functools
import json
import os
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/quickstart"))

from quickstart import openai_client
from world import House, build_model, build_tokenizer, split_tasks

import agl


@agl.rollout
async def find_the_cat(task: dict, llm: agl.LLM) -> float:
    """That of the quickstart, delayed."""
    client = openai_client(os.getpid()).with_options(base_url=llm.endpoint)
    house, delay = House(**task), random.SystemRandom()
    messages = [{"role": "user", "content": house.first_message()}]
    while not house.is_over:
        await asyncio.sleep(delay.random() * 0.02)
        answer = await client.chat.completions.create(
            model=llm.model, messages=messages, **llm.sampling_parameters
        )
        room = answer.choices[0].message.content
        messages += [
            {"role": "assistant", "content": room},
            {"role": "user", "content": house.look(room)},
        ]
    return house.reward


if __name__ == "__main__":
    out, runners, options = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    train_tasks, held_out_tasks = split_tasks()
    algorithm = agl.GRPO(
        **{
            "model": functools.partial(build_model, 0),
            "tokenizer": build_tokenizer,
            "steps": 3,
            "groups_per_step": 4,
            "group_size": 8,
            "epochs": 2,
            "learning_rate": 1e-3,
            "max_tokens": 1,
            "eval_temperature": 0.5,
            "run_dir": str(out),
            "device": "cpu",
            "torch_threads": 1,
            "show_progress": False,
            **options,
        }
    )
    out.mkdir(parents=True)
    agl.Trainer(
        algorithm=algorithm,
        store=agl.SqliteLightningStore(out / "store.db"),
        strategy={"type": "cs", "server_port": 0},
        n_runners=runners,
        concurrency=16,
    ).fit(find_the_cat, train_tasks, val_dataset=held_out_tasks)
