"""A language model small enough to fine-tune on a CPU, which adds numbers with the calculator.

Before the run it is taught, in seconds, to call the tool and to repeat what it returns; half of the
calls that it sees have numbers drawn by chance. So it answers in the right form and mostly wrong,
and fine-tuning on its own right answers has something to find.
"""

import random
from pathlib import Path
from typing import Any

from math_agent import INSTRUCTIONS, MathProblem, math_problem

NUMBERS = range(1, 6)
WARM_UP_STEPS = 300
SHARE_RIGHT = 1 / 2

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<{{ message['role'] }}> {{ message['content'] }} <end> "
    "{% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)


def tiny_problems() -> list[MathProblem]:
    """All sums of two numbers from 1 to 5."""
    return [math_problem(f"What is {a} + {b} ?", a + b) for a in NUMBERS for b in NUMBERS]


def tool_call(a: int, b: int) -> str:
    """How the model writes a call, in the form of Hermes."""
    arguments = f'{{"expression": "{a} + {b}"}}'
    return f'<tool_call> {{"name": "calculate", "arguments": {arguments}}} </tool_call>'


def conversation(a: int, b: int, called: tuple[int, int]) -> list[dict[str, str]]:
    """A rollout as the model sees it, whichever numbers it called the tool with."""
    return [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": f"What is {a} + {b} ?"},
        {"role": "assistant", "content": tool_call(*called)},
        {"role": "tool", "content": str(sum(called))},
        {"role": "assistant", "content": f"### {sum(called)} ###"},
    ]


def build_tokenizer() -> Any:
    """One token per word."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"<{role}>" for role in ("system", "user", "assistant", "tool")}
    for a in NUMBERS:
        for b in NUMBERS:
            for message in conversation(a, b, (a, b)):
                words.update(message["content"].split())
    vocabulary = {word: index for index, word in enumerate(["<unknown>", "<end>", *sorted(words)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=CHAT_TEMPLATE,
        eos_token="<end>",
        pad_token="<end>",
        unk_token="<unknown>",
    )


def save_tiny_model(folder: Path, seed: int = 0) -> Path:
    """Build and teach the model, and save it with its tokenizer; one that is there is kept."""
    if (folder / "config.json").is_file():
        return folder
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = build_tokenizer()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
        initializer_range=0.1,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    draw = random.Random(seed)
    answer_starts = tokenizer.convert_tokens_to_ids("<assistant>")
    for _ in range(WARM_UP_STEPS):
        rows: list[list[int]] = []
        for _ in range(16):
            a, b = draw.choice(NUMBERS), draw.choice(NUMBERS)
            is_right = draw.random() < SHARE_RIGHT
            called = (a, b) if is_right else (draw.choice(NUMBERS), draw.choice(NUMBERS))
            text = tokenizer.apply_chat_template(conversation(a, b, called), tokenize=False)
            rows.append(tokenizer.encode(text, add_special_tokens=False))
        input_ids = torch.tensor(rows)  # all of one length
        labels = input_ids.clone()
        for row, target in zip(rows, labels, strict=True):
            target[: row.index(answer_starts) + 1] = -100
            second = len(row) - row[::-1].index(answer_starts)
            target[row.index(tokenizer.eos_token_id, row.index(answer_starts)) + 1 : second] = -100
        loss = model(input_ids=input_ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
