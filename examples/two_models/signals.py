"""Two models learn a code together: one encodes a colour, the other must name it.

    python signals.py [--steps 40] [--out DIR] [--frozen sender|receiver]

The sender reads the colour and says one sign; only the right one arrives. The receiver reads
nothing but the sign, and names a colour. Both get the reward: 1 for the right colour. They know no
code at first, and neither can succeed alone: with --frozen one of them does not learn.
"""

import argparse
import asyncio
import functools
import json
import time
from pathlib import Path
from typing import Any

import agl

CODE = {"red": "ka", "green": "ti", "blue": "mo"}
COLOURS = [*CODE]
WORDS = ["<user>", "<assistant>", "<end>", *COLOURS, *CODE.values()]
TEMPLATE = (
    "{% for message in messages %}"
    "<{{ message['role'] }}> {{ message['content'] }} <end> "
    "{% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)


@functools.cache
def openai_client(loop: asyncio.AbstractEventLoop) -> Any:
    """One client per event loop: the connections that it keeps belong to the loop."""
    from openai import AsyncOpenAI

    return AsyncOpenAI(api_key="not needed", base_url="http://set.per.rollout", max_retries=0)


@agl.rollout
async def signal(task: str, sender: agl.LLM, receiver: agl.LLM) -> float:
    """The sender tells the receiver a colour; the returned number is the reward of both."""

    async def ask(llm: agl.LLM, text: str) -> str:
        client = openai_client(asyncio.get_running_loop()).with_options(base_url=llm.endpoint)
        answer = await client.chat.completions.create(
            model=llm.model, messages=[{"role": "user", "content": text}], **llm.sampling_parameters
        )
        return answer.choices[0].message.content or ""

    sign = await ask(sender, task)
    if sign != CODE[task]:  # nothing arrives
        return 0.0
    return float(await ask(receiver, sign) == task)


def build_tokenizer() -> Any:
    """One token per word."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: index for index, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=TEMPLATE)


def build_model(seed: int) -> Any:
    """A transformer of one layer with random weights: it knows nothing."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
        initializer_range=0.1,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return LlamaForCausalLM(config)


def train(steps: int, out: Path, frozen: str | None = None) -> list[float]:
    """Train both in `out`; the mean rewards of the colours before and after."""
    common = {
        "tokenizer": build_tokenizer,
        "epochs": 4,
        "max_tokens": 1,
        "device": "cpu",
        "torch_threads": 1,
    }
    models = {
        "sender": {
            "type": "grpo",
            "model": functools.partial(build_model, 0),
            "learning_rate": 2e-3,
            "entropy_bonus": 0.1,
            **common,
        },
        "receiver": {
            "type": "reinforce++",
            "model": functools.partial(build_model, 1),
            "learning_rate": 2e-3,
            "entropy_bonus": 0.1,
            **common,
        },
    }
    if frozen is not None:
        models[frozen]["learning_rate"] = 0.0
    trainer = agl.Trainer(
        algorithm={
            "type": "team",
            "models": models,
            "steps": steps,
            "groups_per_step": 3,
            "group_size": 16,
            "stopping": {"target_reward": 0.95},
            "evaluation": {"copies": 8, "temperature": 0.5},
        },
        store=agl.InMemoryLightningStore(),
        run_dir=out,
        strategy="shm",
        n_runners=1,
        concurrency=48,
    )
    trainer.fit(signal, COLOURS, val_dataset=COLOURS)
    summary = json.loads((out / "summary.json").read_text())
    return [reward for _, reward in summary["val_rewards"]]


def main() -> None:
    """Read the command line, train, show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40, help="at most so many")
    parser.add_argument("--out", type=Path, help="folder of the run")
    parser.add_argument("--frozen", choices=["sender", "receiver"], help="the one that learns not")
    options = parser.parse_args()
    out = options.out or Path("agl-runs") / time.strftime("two-models-%Y%m%d-%H%M%S")
    before, *_, after = train(options.steps, out, options.frozen)
    print(f"right colours before: {before:.2f}, after: {after:.2f}")


if __name__ == "__main__":
    main()
