"""A language model small enough to train on a CPU, which has seen a little SQL, most of it wrong.

Before the run it is taught, in seconds, what counting queries look like: a third of those it sees
count the rows that the question asks for, the others those of any table. The verdicts that it sees
are drawn at random. So it answers in the right form and mostly wrong, as larger models do at first
with harder questions, and reinforcement learning has something to find.
"""

import random
from typing import Any

from sql_agent import CHECK_PROMPT, REWRITE_PROMPT, WRITE_PROMPT
from sql_execution import read_schema
from sql_tasks import SqlTask, databases_of

WARM_UP_STEPS = 200
SHARE_RIGHT = 1 / 3
VERDICTS = ["THE QUERY IS CORRECT", "THE QUERY IS INCORRECT"]

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<{{ message['role'] }}> {{ message['content'] }} <end> "
    "{% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)


def easy_tasks(tasks: list[SqlTask]) -> list[SqlTask]:
    """Those that count the rows of a table: a word of the question says of which."""
    return [task for task in tasks if _counts_a_table(task["private"]["query"])]


def _counts_a_table(query: str) -> bool:
    return query.startswith("SELECT count(*)") and "WHERE" not in query


def conversations(tasks: list[SqlTask], draw: random.Random) -> list[tuple[str, str]]:
    """A prompt of each kind for each task, with an answer; see the head of this module."""
    queries = [task["private"]["query"] for task in tasks]

    def answer(task: SqlTask) -> str:
        return task["private"]["query"] if draw.random() < SHARE_RIGHT else draw.choice(queries)

    made: list[tuple[str, str]] = []
    for task in tasks:
        known = {"schema": read_schema(databases_of(task)[0]), "question": task["question"]}
        ran = {
            "query": draw.choice(queries),
            "execution": draw.choice(
                ["count(*)\n12", "Error: OperationalError: no such table: " + draw.choice(WORDS)]
            ),
            "feedback": draw.choice(VERDICTS),
        }
        made += [
            (WRITE_PROMPT.format(**known), answer(task)),
            (CHECK_PROMPT.format(**known, **ran), draw.choice(VERDICTS)),
            (REWRITE_PROMPT.format(**known, **ran), answer(task)),
        ]
    return made


WORDS = ["singer", "concert", "book", "member", "customer", "product", "student", "course"]


def build_tokenizer(tasks: list[SqlTask]) -> Any:
    """One token per word of the prompts and answers; words that it does not know are one token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<user>", "<assistant>", *(str(number) for number in range(50))}
    draw = random.Random(0)
    for _ in range(20):
        for pair in conversations(tasks, draw):
            words.update(word for text in pair for word in text.split())
    vocabulary = {word: index for index, word in enumerate(["<unknown>", "<end>", *sorted(words)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=CHAT_TEMPLATE,
        eos_token="<end>",
        unk_token="<unknown>",
    )


def build_model(tasks: list[SqlTask], seed: int = 0) -> Any:
    """A transformer of two layers that was taught the form of answers, in a few seconds."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = build_tokenizer(tasks)
    torch.manual_seed(seed)
    end = tokenizer.eos_token_id
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=1024,
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
        for prompt, answer in draw.sample(conversations(tasks, draw), 12):
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
