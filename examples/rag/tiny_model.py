"""A language model small enough to train on a CPU, which looks things up, mostly the wrong ones.

Before the run it is taught, in seconds, to call the tool once and to answer from what it returns;
most of the calls that it sees ask for a person drawn by chance. So it answers in the right form and
about the wrong person, and reinforcement learning has something to find: the name to look up is the
one in the question.
"""

import random
from pathlib import Path
from typing import Any

from rag_agent import INSTRUCTIONS, rag_agent
from retriever import WordRetriever
from wiki_tasks import one_step_tasks, person_in, place_in, small_world

import agl

WARM_UP_STEPS = 300
SHARE_RIGHT = 1 / 3

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


def conversation(question: str, person: str, passages: WordRetriever) -> list[dict[str, Any]]:
    """A rollout as the model sees it, whomever it looked up."""
    arguments = {"query": person, "top_k": 1}
    call = {"type": "function", "function": {"name": "retrieve", "arguments": arguments}}
    (passage,) = passages.search(person, 1)
    place = place_in(passage, question)
    return [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": question},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": passage},
        {"role": "assistant", "content": f"<answer> {place} </answer>"},
    ]


def build_tokenizer(passages: WordRetriever) -> Any:
    """One token per word, full stops apart; words that it does not know are one token."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Split(Regex(r"\.$"), "isolated"),
        ]
    )

    def make(words: list[str]) -> Any:
        vocabulary = {word: index for index, word in enumerate(["<unknown>", "<end>", *words])}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unknown>"))
        tokenizer.pre_tokenizer = split
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            chat_template=CHAT_TEMPLATE,
            eos_token="<end>",
            pad_token="<end>",
            unk_token="<unknown>",
        )

    render = make([]).apply_chat_template
    tasks = [task for part in one_step_tasks() for task in part]
    texts = [
        render(
            conversation(task["question"], person_in(other["question"]), passages), tokenize=False
        )
        for task in tasks
        for other in tasks
    ]
    words = {word for text in texts for word, _ in split.pre_tokenize_str(text)}
    return make(sorted(words - {"<end>"}))


def save_tiny_model(folder: Path, seed: int = 0) -> Path:
    """Build and teach the model, and save it with its tokenizer; one that is there is kept."""
    if (folder / "config.json").is_file():
        return folder
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    passages = WordRetriever(small_world()[0])
    tokenizer = build_tokenizer(passages)
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
    questions = [task["question"] for part in one_step_tasks() for task in part]
    for _ in range(WARM_UP_STEPS):
        input_ids, labels = make_batch(tokenizer, questions, passages, draw)
        loss = model(input_ids=input_ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_batch(
    tokenizer: Any,
    questions: list[str],
    passages: WordRetriever,
    draw: random.Random,
    rows: int = 16,
) -> tuple[Any, Any]:
    """Conversations and what is learned of them, the assistant's words: two of (rows, tokens)."""
    import torch

    assistant, end = tokenizer.convert_tokens_to_ids(["<assistant>", "<end>"])
    ids: list[list[int]] = []
    for _ in range(rows):
        question = draw.choice(questions)
        other = question if draw.random() < SHARE_RIGHT else draw.choice(questions)
        messages = conversation(question, person_in(other), passages)
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        ids.append(tokenizer.encode(text, add_special_tokens=False))
    longest = max(map(len, ids))
    input_ids = torch.full((rows, longest), end)
    labels = torch.full((rows, longest), -100)
    for index, row in enumerate(ids):
        # What follows the conversation comes after it: nothing attends to it.
        input_ids[index, : len(row)] = torch.tensor(row)
        says = False
        for position, token in enumerate(row):
            if says:
                labels[index, position] = token
            says = token == assistant or (says and token != end)
    return input_ids, labels


def train_tiny(steps: int, runners: int, out: Path) -> None:
    """The line of ``train_rag.py`` with this model, on a CPU; needs ``agl-verl[backend]``."""
    from agl_verl.cpu import cpu_config, use_cpu

    use_cpu()
    tasks = one_step_tasks()
    config = cpu_config(
        save_tiny_model(out / "tiny-model"),
        prompts_per_step=8,
        rollouts_per_prompt=12,
        max_prompt_length=160,
        max_response_length=12,
        learning_rate=1e-3,
        actor_rollout_ref={
            "actor": {"ppo_epochs": 2},
            "rollout": {
                "multi_turn": {"format": "hermes"},
                "val_kwargs": {"n": 8, "temperature": 1.0, "do_sample": True, "top_p": 1.0},
            },
        },
        trainer={
            "total_training_steps": steps,
            "total_epochs": steps,
            "val_before_train": True,
            "test_freq": steps,
        },
    )
    algorithm = agl.VERL(config, rollout_timeout_seconds=120, run_dir=str(out))
    trainer = agl.Trainer(
        algorithm=algorithm,
        n_runners=runners,
        concurrency=16,
        strategy={"type": "cs", "server_port": 0},
    )
    trainer.fit(rag_agent, tasks[0], val_dataset=tasks[1])
    print(f"reward of each step: {[round(r, 2) for r in algorithm.summary['rewards']]}")
    for step, reward in algorithm.summary["val_rewards"]:
        print(f"reward on held-out questions after step {step}: {reward:.2f}")
