"""A language model small enough to train on a CPU, which uses the calculator, mostly wrongly.

Before the run it is taught, in seconds, to call the tool and to repeat what it returns; most of the
calls that it sees have numbers drawn by chance. So it answers in the right form and with the wrong
number, as larger models do at first with harder problems, and there is something to learn.
"""

import random
from pathlib import Path
from typing import Any

from calc_agent import SYSTEM_MESSAGE
from calc_tasks import CalcTask, calc_task

NUMBERS = range(1, 7)
HELD_OUT = 6
WARM_UP_STEPS = 300
SHARE_RIGHT = 1 / 4

# Calls of tools are written as Hermes and Qwen write them.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<{{ message['role'] }}> "
    "{% if message['content'] %}{{ message['content'] }} {% endif %}"
    "{% for call in message['tool_calls'] or [] %}"
    '<tool_call> {"name": "{{ call.function.name }}", '
    '"arguments": {{ call.function.arguments | tojson }}} </tool_call> '
    "{% endfor %}"
    "<end> "
    "{% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)


def tiny_tasks() -> tuple[list[CalcTask], list[CalcTask]]:
    """All sums of two numbers from 1 to 6, in an order of their own; six of them are held out."""
    tasks = [calc_task(f"What is {a} + {b} ?", str(a + b)) for a in NUMBERS for b in NUMBERS]
    random.Random(0).shuffle(tasks)
    return tasks[HELD_OUT:], tasks[:HELD_OUT]


def conversation(a: int, b: int, called: tuple[int, int]) -> list[dict[str, Any]]:
    """A rollout as the model sees it, whichever numbers it called the tool with."""
    arguments = {"expression": f"{called[0]} + {called[1]}"}
    call = {"type": "function", "function": {"name": "calculate", "arguments": arguments}}
    return [
        {"role": "system", "content": SYSTEM_MESSAGE},
        {"role": "user", "content": f"What is {a} + {b} ?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": str(sum(called))},
        {"role": "assistant", "content": f"### ANSWER: {sum(called)} ###"},
    ]


def build_tokenizer() -> Any:
    """One token per word; words that it does not know are one token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    def make(words: list[str]) -> Any:
        vocabulary = {word: index for index, word in enumerate(["<unknown>", "<end>", *words])}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unknown>"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            chat_template=CHAT_TEMPLATE,
            eos_token="<end>",
            pad_token="<end>",
            unk_token="<unknown>",
        )

    render = make([]).apply_chat_template
    texts = [render(conversation(a, b, (a, b)), tokenize=False) for a in NUMBERS for b in NUMBERS]
    return make(sorted({word for text in texts for word in text.split()} - {"<end>"}))


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
    for _ in range(WARM_UP_STEPS):
        input_ids, labels = make_batch(tokenizer, draw)
        loss = model(input_ids=input_ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_batch(tokenizer: Any, draw: random.Random, rows: int = 16) -> tuple[Any, Any]:
    """Conversations and what is learned of them, the assistant's words: two of (rows, tokens)."""
    import torch

    assistant, end = tokenizer.convert_tokens_to_ids(["<assistant>", "<end>"])
    ids: list[list[int]] = []
    labels: list[list[int]] = []
    for _ in range(rows):
        a, b = draw.choice(NUMBERS), draw.choice(NUMBERS)
        is_right = draw.random() < SHARE_RIGHT
        called = (a, b) if is_right else (draw.choice(NUMBERS), draw.choice(NUMBERS))
        text = tokenizer.apply_chat_template(conversation(a, b, called), tokenize=False)
        row = tokenizer.encode(text, add_special_tokens=False)
        says, label = False, list[int]()
        for token in row:
            label.append(token if says else -100)
            says = token == assistant or (says and token != end)
        ids.append(row)
        labels.append(label)
    return torch.tensor(ids), torch.tensor(labels)  # all of one length
