"""One GRPO training of SmolLM2 on sums, by agl or by TRL: a part of ``against_trl.py``.

TRL samples with transformers, and each training has a process of its own.

Both: 8 prompts of the same 256 with 8 answers each a step, at most 16 sampled tokens, temperature
1, one optimiser step (AdamW, constant learning rate), the mean of tokens, clip 0.2 and 0.28, no
reference, float32. What agl's process does besides, and TRL's does not: it has the store, the
runner, the agent with its ``openai`` client, the gateway between them, and a checkpoint.
"""

import asyncio
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from real_model import openai_client, question_of, reward_of, tasks

import agl
from agl_testing.models import smollm2

GROUPS, SIZE, MAX_TOKENS = 8, 8, 16
TRL_SETTINGS: dict[str, dict[str, Any]] = {
    "64 rows": {"per_device_train_batch_size": 64, "gradient_accumulation_steps": 1},
    "16 rows": {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 4},
    "8 rows": {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 8},
    "16 rows, checkpointing": {
        "per_device_train_batch_size": 16,
        "gradient_accumulation_steps": 4,
        "gradient_checkpointing": True,
    },
}
"""Ways to cut a step of 64 rollouts; TRL's default for ``gradient_checkpointing`` is True."""


def prompt_of(task: dict[str, int]) -> list[dict[str, str]]:
    """As a chat."""
    return [{"role": "user", "content": question_of(task)}]


async def ask(task: dict[str, int], llm: agl.LLM) -> str:
    """The answer of the model."""
    client = openai_client(asyncio.get_running_loop()).with_options(base_url=llm.endpoint)
    answer = await client.chat.completions.create(model=llm.model, messages=prompt_of(task))
    return answer.choices[0].message.content or ""


@agl.rollout
async def solve(task: dict[str, int], llm: agl.LLM) -> float:
    """1 for the right number."""
    return reward_of(task, await ask(task, llm))


@agl.rollout
async def count_digits(task: dict[str, int], llm: agl.LLM) -> float:
    """A reward that hardly any two answers have in common: agl trains all of them, as TRL does."""
    return share_of_digits(task, await ask(task, llm))


def share_of_digits(task: dict[str, int], answer: str) -> float:
    """How much of the answer is digits."""
    return sum(map(str.isdigit, answer)) / max(len(answer), 1)


def run_agl(
    steps: int, seed: int, learning_rate: float, folder: Path, is_graded: bool
) -> dict[str, Any]:
    """Train with agl; per step seconds, tokens, reward, and where the model is."""
    algorithm = agl.GRPO(
        model=str(smollm2()),
        steps=steps,
        seed=seed,
        run_dir=str(folder),
        groups_per_step=GROUPS,
        group_size=SIZE,
        max_tokens=MAX_TOKENS,
        learning_rate=learning_rate,
        dtype="float32",
        checkpoints={"every": steps},
    )
    ends: list[float] = []
    update = algorithm.update

    def clocked(rows: list[Any]) -> Any:
        made = update(rows)
        ends.append(time.process_time())
        return made

    algorithm.update = clocked
    trainer = agl.Trainer(algorithm=algorithm, n_runners=1, concurrency=64, strategy="shm")
    trainer.fit(count_digits if is_graded else solve, train_dataset=tasks(256, 1))
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {
        "cpu": per_step(ends, steps),
        "steps": [
            {
                "reward": line["reward/mean"],
                "seconds": line["time/step"],
                "sampling": line["time/rollouts"],
                "update": line["time/update"],
                "sampled": line["tokens/sampled"],
                "tokens": line["tokens/sampled"] + line["tokens/given"],
                "rows": line.get("rows", 0),
            }
            for line in lines
            if "time/step" in line
        ],
        "model": str(max(folder.rglob("model.safetensors")).parent),
    }


def per_step(ends: list[float], steps: int) -> float:
    """Seconds of CPU from the end of the first update to that of the last, a step."""
    return (ends[-1] - ends[0]) / max(steps - 1, 1)


def run_trl(
    steps: int, seed: int, learning_rate: float, folder: Path, is_graded: bool, setting: str
) -> dict[str, Any]:
    """Train with TRL; likewise."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    found: list[dict[str, Any]] = []
    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            self.begin = time.perf_counter()
            found.append({"sampling": 0.0, "sampled": 0, "tokens": 0, "rows": GROUPS * SIZE})

        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            found[-1]["seconds"] = time.perf_counter() - self.begin
            found[-1]["update"] = found[-1]["seconds"] - found[-1]["sampling"]
            ends.append(time.process_time())

    def reward(
        prompts: list[Any],
        completions: list[Any],
        completion_ids: list[list[int]],
        a: list[int],
        b: list[int],
        **others: Any,
    ) -> list[float]:
        judge = share_of_digits if is_graded else reward_of
        rewards = [
            judge({"a": one, "b": other}, completion[0]["content"])
            for one, other, completion in zip(a, b, completions, strict=True)
        ]
        found[-1]["reward"] = sum(rewards) / len(rewards)
        found[-1]["sampled"] = sum(map(len, completion_ids))
        return rewards

    trainer = GRPOTrainer(
        model=str(smollm2()),
        reward_funcs=reward,
        train_dataset=Dataset.from_list([{**t, "prompt": prompt_of(t)} for t in tasks(256, 1)]),
        callbacks=[Clock()],
        args=GRPOConfig(
            output_dir=str(folder),
            max_steps=steps,
            seed=seed,
            num_generations=SIZE,
            max_completion_length=MAX_TOKENS,
            learning_rate=learning_rate,
            lr_scheduler_type="constant",
            loss_type="dapo",
            epsilon=0.2,
            epsilon_high=0.28,
            bf16=False,
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_steps=1,
            **{"gradient_checkpointing": False, **TRL_SETTINGS[setting]},
        ),
    )
    generate = trainer.model.generate

    def timed(**given: Any) -> Any:
        begin = time.perf_counter()
        made = generate(**given)
        found[-1]["sampling"] += time.perf_counter() - begin
        found[-1]["tokens"] = int(given["attention_mask"].sum())
        return made

    trainer.model.generate = timed
    trainer.train()
    del trainer.model.generate
    for step in found:
        step["tokens"] += step["sampled"]
    trainer.save_model(str(folder / "model"))
    cpu = per_step(ends, steps)
    return {"cpu": cpu, "steps": found, "model": str(folder / "model")}


def run(
    side: str,
    steps: int,
    seed: int = 0,
    learning_rate: float = 5e-6,
    setting: str = "16 rows",
    held_out_sums: int = 0,
    is_graded: bool = False,
) -> dict[str, Any]:
    """Train, say what it took, and afterwards how many held-out sums are right."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="agl-trl-") as folder:
        if side == "agl":
            found = run_agl(steps, seed, learning_rate, Path(folder), is_graded)
        else:
            found = run_trl(steps, seed, learning_rate, Path(folder), is_graded, setting)
        found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        found["whole"] = time.perf_counter() - begin
        model = found.pop("model")
        if held_out_sums:
            found["held_out"] = held_out(model, held_out_sums)
    return {"side": side, "seed": seed, **({"setting": setting} if side == "trl" else {}), **found}


def held_out(folder: str, sums: int) -> float:
    """Share of right answers to so many that were not trained, sampled as in training."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2(), padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    torch.manual_seed(0)
    asked = tasks(sums, 2)
    given = tokenizer.apply_chat_template(
        [prompt_of(task) for task in asked],
        add_generation_prompt=True,
        padding=True,
        return_dict=True,
        return_tensors="pt",
    )
    sampling = {"do_sample": True, "top_k": 0, "max_new_tokens": MAX_TOKENS}
    made = model.generate(**given, **sampling, pad_token_id=tokenizer.pad_token_id)
    answers = tokenizer.batch_decode(
        made[:, given["input_ids"].shape[1] :], skip_special_tokens=True
    )
    return sum(map(reward_of, asked, answers)) / len(asked)
