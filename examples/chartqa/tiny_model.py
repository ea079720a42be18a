"""A language model small enough to train on a CPU, which takes numbers off the wrong line, mostly.

Before the run it is taught, in seconds, what the agent's prompts and their answers look like: a
third of the answers that it sees are right, the others are any number of the chart. The verdicts
that it sees are drawn at random. So it answers in the right form and mostly wrong, and
reinforcement learning has something to find. It reads text: a script sees the charts for it.
"""

import random
from typing import Any

import prompts
from chart_tasks import ChartTask, load_tasks
from prepare_data import questions_about, small_charts
from scripted_llm import data_of

NUM_TASKS = 8
WARM_UP_STEPS = 200
SHARE_RIGHT = 1 / 3
VERDICTS = ["THE ANSWER IS RIGHT", "THE ANSWER IS WRONG"]

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<{{ message['role'] }}> {{ message['content'] }} <end> "
    "{% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)


def tiny_tasks() -> list[ChartTask]:
    """Of eight small charts, the question for one of their numbers.

    Raises:
        ValueError: Other charts have been prepared.
    """
    questions = [questions_about(chart)[0][0] for chart in small_charts()[:NUM_TASKS]]
    tasks = {task["question"]: task for task in load_tasks()[0]}
    if missing := [question for question in questions if question not in tasks]:
        raise ValueError(
            f"the tiny model is for the small charts, of which {missing[0]!r} is a question; the "
            "prepared charts have none such. Run `python prepare_data.py` without other arguments"
        )
    return [tasks[question] for question in questions]


def conversations(draw: random.Random) -> list[tuple[str, str]]:
    """A prompt of each kind for each task, with an answer; see the head of this module."""

    def answer(chart: dict[str, Any], right: str) -> str:
        numbers = [str(value) for value in chart["values"].values()]
        value = right if draw.random() < SHARE_RIGHT else draw.choice(numbers)
        # Words apart: one is one token.
        return f"<answer> {value} </answer>"

    made: list[tuple[str, str]] = []
    for chart in small_charts()[:NUM_TASKS]:
        question, right = questions_about(chart)[0]
        known = {"question": question, "data": data_of(chart)}
        said = {"answer": answer(chart, right), "feedback": draw.choice(VERDICTS)}
        made += [
            (prompts.CALCULATE.format(**known), answer(chart, right)),
            (prompts.CHECK.format(**known, **said), draw.choice(VERDICTS)),
            (prompts.REFINE.format(**known, **said), answer(chart, right)),
        ]
    return made


def build_tokenizer() -> Any:
    """One token per word of the prompts and answers; words that it does not know are one token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<user>", "<assistant>"}
    draw = random.Random(0)
    for _ in range(20):
        words.update(word for pair in conversations(draw) for text in pair for word in text.split())
    vocabulary = {word: index for index, word in enumerate(["<unknown>", "<end>", *sorted(words)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=CHAT_TEMPLATE,
        eos_token="<end>",
        unk_token="<unknown>",
    )


def build_model(seed: int = 0) -> Any:
    """A transformer of two layers that was taught the form of answers, in a few seconds."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = build_tokenizer()
    torch.manual_seed(seed)
    end = tokenizer.eos_token_id
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
        eos_token_id=end,
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    draw = random.Random(seed)
    for _ in range(WARM_UP_STEPS):
        rows: list[tuple[list[int], int]] = []
        for prompt, answer in draw.sample(conversations(draw), 12):
            messages = [{"role": "user", "content": prompt}]
            text = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
            prompt_ids = tokenizer.encode(text, add_special_tokens=False)
            answer_ids = tokenizer.encode(answer, add_special_tokens=False)
            rows.append(([*prompt_ids, *answer_ids, end], len(prompt_ids)))
        longest = max(len(ids) for ids, _ in rows)
        input_ids = torch.full((len(rows), longest), end)
        labels = torch.full((len(rows), longest), -100)
        for index, (ids, start) in enumerate(rows):
            # What follows the answer is no part of it, and comes after it: nothing attends to it.
            input_ids[index, : len(ids)] = torch.tensor(ids)
            labels[index, start : len(ids)] = torch.tensor(ids[start:])
        loss = model(input_ids=input_ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
    return model
