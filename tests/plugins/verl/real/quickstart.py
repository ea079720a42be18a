"""Train the agent of ``examples/quickstart`` with the real verl on a CPU; what the tests start.

python quickstart.py --out DIR [--steps 10] [--mode sync] [--set KEY=VALUE ...]
"""

import argparse
import asyncio
import functools
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[4] / "examples" / "quickstart"))

from world import House, Task, build_model, build_tokenizer, split_tasks

import agl
from agl_testing.verl_cpu import cpu_config, use_cpu


@functools.cache
def openai_client(loop: asyncio.AbstractEventLoop) -> Any:
    """One client per event loop: the connections that it keeps belong to the loop."""
    from openai import AsyncOpenAI

    return AsyncOpenAI(api_key="not needed", base_url="http://set.per.rollout", max_retries=0)


def meet_misfortune() -> None:
    """Fail as often as the environment says, or die once in the place that it names."""
    if random.random() < float(os.environ.get("AGL_TEST_FAIL", "0")):
        raise RuntimeError("the agent stumbled")
    die_once = os.environ.get("AGL_TEST_DIE_ONCE")
    if die_once and not Path(die_once).exists():
        Path(die_once).touch()
        os._exit(13)


@agl.rollout
async def find_the_cat(task: Task, llm: agl.LLM) -> float:
    """The agent of the quickstart, unchanged."""
    meet_misfortune()
    client = openai_client(asyncio.get_running_loop()).with_options(base_url=llm.endpoint)
    house = House(**task)
    messages = [{"role": "user", "content": house.first_message()}]
    while True:
        answer = await client.chat.completions.create(
            model=llm.model, messages=messages, **llm.sampling_parameters
        )
        room = answer.choices[0].message.content
        heard = house.look(room)
        if house.is_over:
            return house.reward
        messages += [{"role": "assistant", "content": room}, {"role": "user", "content": heard}]


def save_model(folder: Path, seed: int) -> Path:
    """The quickstart's model of random weights as a folder, as verl wants it."""
    tokenizer = build_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token = "<end>"  # verl pads, and asks where answers end
    model = build_model(seed)
    model.config.pad_token_id = model.config.eos_token_id = tokenizer.eos_token_id
    model.config.max_position_embeddings = 256  # verl's rows of padding have 128 tokens
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = (
        tokenizer.eos_token_id
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def configuration(model: Path, options: argparse.Namespace) -> dict[str, Any]:
    """verl's settings for it."""
    config = cpu_config(
        model,
        mode=options.mode,
        ranks=options.ranks,
        prompts_per_step=options.prompts,
        rollouts_per_prompt=options.rollouts,
        max_prompt_length=64,
        max_response_length=1,
        critic=options.algorithm == "ppo",
        learning_rate=options.lr,
        actor_rollout_ref={
            "actor": {"ppo_epochs": options.epochs, "entropy_coeff": 0.06},
            "rollout": {
                "val_kwargs": {"n": 4, "temperature": 0.5, "do_sample": True, "top_p": 1.0}
            },
        },
        trainer={"total_training_steps": options.steps, "total_epochs": 1000},
    )
    config["algorithm"].pop("adv_estimator", None)
    config["agentlightning"] = {"trace_aggregator": {"level": options.level}}
    for setting in options.set:
        key, _, value = setting.partition("=")
        node = config
        *folders, last = key.split(".")
        for name in folders:
            node = node.setdefault(name, {})
        node[last] = json.loads(value)
    return config


def main() -> None:
    """Read the command line, train, print the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--mode", default="sync")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--algorithm", default="grpo")
    parser.add_argument("--level", default="trajectory")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runners", type=int, default=1)
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    use_cpu()
    options.out.mkdir(parents=True, exist_ok=True)
    folder = options.out / "model"
    if not folder.exists():
        save_model(folder, options.seed)
    train, held_out = split_tasks()
    trainer = agl.Trainer(
        algorithm=agl.VERL(
            configuration(folder, options),
            algorithm=options.algorithm,
            rollout_timeout_seconds=60,
            run_dir=str(options.out),
        ),
        strategy={"type": "cs", "server_port": 0},
        n_runners=options.runners,
    )
    trainer.fit(find_the_cat, train, val_dataset=held_out if options.validate else None)
    print((options.out / "summary.json").read_text())


if __name__ == "__main__":
    main()
