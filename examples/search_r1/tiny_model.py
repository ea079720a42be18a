"""A language model small enough to train on a CPU, which searches, mostly for the wrong person.

Before the run it is taught, in seconds, to search once and to answer from what it gets; most of the
searches that it sees are for a person drawn by chance. So it answers in the right form and about
the wrong person, and reinforcement learning has something to find: whom the question names.
"""

import random
from typing import Any

from search_r1_agent import PROMPT
from search_tasks import SearchTask, search_task, small_world

# Of ../rag, which search_tasks has put on the path.
from retriever import WordRetriever  # isort: skip
from wiki_tasks import one_step_tasks, person_in, place_in  # isort: skip

WARM_UP_STEPS = 300
SHARE_RIGHT = 1 / 3
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<{{ message['role'] }}> {{ message['content'] }} <end> "
    "{% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)


def tiny_tasks() -> tuple[list[SearchTask], list[SearchTask]]:
    """The 32 questions of one step; eight are held out."""
    train, test = one_step_tasks()
    return (
        [search_task(task["question"], task["private"]["answers"]) for task in train],
        [search_task(task["question"], task["private"]["answers"]) for task in test],
    )


def conversation(question: str, person: str, passages: WordRetriever) -> list[dict[str, str]]:
    """A rollout as the model sees it, whomever it searches."""
    (passage,) = passages.search(person, 1)
    return [
        {"role": "user", "content": PROMPT.format(question=question)},
        {"role": "assistant", "content": f"<search> {person} </search>"},
        {"role": "user", "content": f"<information> {passage} </information>"},
        {"role": "assistant", "content": f"<answer> {place_in(passage, question)} </answer>"},
    ]


def _questions() -> list[str]:
    return [task["question"] for part in tiny_tasks() for task in part]


def build_tokenizer() -> Any:
    """One token per word, full stops apart; words that it does not know are one token."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Split(Regex(r"\.$"), "isolated"),
        ]
    )
    passages = WordRetriever(small_world()[0])
    questions = _questions()
    texts = [
        message["content"]
        for question in questions
        for other in questions
        for message in conversation(question, person_in(other), passages)
    ]
    words = {word for text in texts for word, _ in split.pre_tokenize_str(text)}
    roles = ["<user>", "<assistant>"]
    vocabulary = {
        word: index for index, word in enumerate(["<unknown>", "<end>", *roles, *sorted(words)])
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = split
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=CHAT_TEMPLATE,
        eos_token="<end>",
        unk_token="<unknown>",
    )


def build_model(seed: int = 0) -> Any:
    """A transformer of two layers that was taught the form of searches and answers."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = build_tokenizer()
    passages, questions = WordRetriever(small_world()[0]), _questions()
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
        rows: list[list[int]] = []
        for _ in range(16):
            question = draw.choice(questions)
            other = question if draw.random() < SHARE_RIGHT else draw.choice(questions)
            messages = conversation(question, person_in(other), passages)
            text = tokenizer.apply_chat_template(messages, tokenize=False)
            rows.append(tokenizer.encode(text, add_special_tokens=False))
        loss = _loss_of_answers(model, rows, tokenizer.convert_tokens_to_ids("<assistant>"), end)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
    return model


def _loss_of_answers(model: Any, rows: list[list[int]], assistant: int, end: int) -> Any:
    """Of what the assistant says, its ends included."""
    import torch

    longest = max(map(len, rows))
    input_ids = torch.full((len(rows), longest), end)
    labels = torch.full((len(rows), longest), -100)
    for index, row in enumerate(rows):
        # What follows the conversation comes after it: nothing attends to it.
        input_ids[index, : len(row)] = torch.tensor(row)
        says = False
        for position, token in enumerate(row):
            if says:
                labels[index, position] = token
            says = token == assistant or (says and token != end)
    return model(input_ids=input_ids, labels=labels).loss
