"""A language model of one's own, small enough to train on a laptop's CPU in minutes.

It knows the words of the conversations that it is given, and is taught their form, in seconds: what
an answer or the call of a tool looks like. If some of the answers are wrong, it answers in the
right form and often wrongly, as larger models do at first with harder tasks, and reinforcement
learning has something to find.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from agl.errors import ConfigError, install_line
from agl.utils.logs import tell
from agl.utils.text import shorten

Conversation = Sequence[dict[str, Any]]
"""OpenAI chat messages: a whole rollout as the model sees it, answers and calls of tools too."""
Draw = Callable[[random.Random], Conversation]
"""Makes one conversation of many, by chance."""

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
"""Calls of tools are written as Hermes and Qwen write them. Words stand apart: the tokens of a
conversation begin with those of what came before."""

NUM_READ = 1000
"""So many conversations are drawn to find the words."""


def tiny_model(
    folder: str | Path,
    conversations: Sequence[Conversation] | Draw,
    *,
    words: Iterable[str] = (),
    steps: int = 300,
    seed: int = 0,
) -> Path:
    """Build a transformer of two layers, teach it the form of conversations, and save it.

    Args:
        folder: Gets the model and its tokenizer, as ``from_pretrained`` loads them and ``model:``
            takes them. A model that is there is kept.
        conversations: What it is taught; a function that draws one has the model see many.
        words: Further words that it shall know: a word is a token, and a full stop at the end of
            a word is one. All other words are one token, ``<unknown>``.
        steps: Of the warm-up, 16 conversations each.
        seed: Of weights and draws.

    Returns:
        The folder.

    Raises:
        ConfigError: torch or transformers is not installed, a file is where the folder shall be, or
            ``conversations`` are none.
    """
    folder = Path(folder)
    if (folder / "config.json").is_file():
        tell(f"{folder} has a model, which is kept as it is; remove the folder to make another")
        return folder
    if file := next(filter(Path.is_file, (folder, *folder.parents)), None):
        raise ConfigError(
            f"tiny_model: cannot make the folder {str(folder)!r}: {str(file)!r} is a file. Give "
            "the path of a folder, or of one that can be made"
        )

    def draw(chance: random.Random) -> Conversation:
        return conversations(chance) if callable(conversations) else chance.choice(conversations)

    chance = random.Random(0)
    read = [draw(chance) for _ in range(NUM_READ)] if callable(conversations) else conversations
    for each in read or [()]:
        if not each or isinstance(each, str | dict):
            got = f"{shorten(repr(each))} as one of them" if read else "none"
            raise ConfigError(
                f"tiny_model: conversations: got {got}; expected lists of messages. Give "
                "[[{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'Hi'}], ...]"
            )
    try:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        raise ConfigError(
            f"tiny_model needs {error.name!r}, which is not installed. Run: "
            f"{install_line('agl-torch')}"
        ) from error
    tokenizer = _tokenizer(read, words)
    torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]
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
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model: Any = LlamaForCausalLM(config)
    optimiser: Any = torch.optim.AdamW(model.parameters(), lr=2e-3)
    chance = random.Random(seed)
    for _ in range(steps):
        input_ids, labels = _batch(tokenizer, [draw(chance) for _ in range(16)])
        model(input_ids=input_ids, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _tokenizer(conversations: Iterable[Conversation], words: Iterable[str]) -> Any:
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    full_stop = pre_tokenizers.Split(Regex(r"\.$"), "isolated")
    split: Any = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), full_stop])

    def make(words: Iterable[str]) -> Any:
        special = ["<unknown>", "<end>", "<system>", "<user>", "<assistant>", "<tool>"]
        known = {word: n for n, word in enumerate([*special, *sorted({*words} - {*special})])}
        backend: Any = Tokenizer(models.WordLevel(known, unk_token="<unknown>"))
        backend.pre_tokenizer = split
        return PreTrainedTokenizerFast(
            tokenizer_object=backend,
            chat_template=CHAT_TEMPLATE,
            eos_token="<end>",
            pad_token="<end>",
            unk_token="<unknown>",
        )

    render = make([]).apply_chat_template
    texts = [*words, *(render(list(each), tokenize=False) for each in conversations)]
    return make(word for text in texts for word, _ in split.pre_tokenize_str(text))


def _batch(tokenizer: Any, conversations: Sequence[Conversation]) -> tuple[Any, Any]:
    """Tokens, and what of them is learned: what the assistant says, its ends included."""
    import torch

    assistant, end = tokenizer.convert_tokens_to_ids(["<assistant>", "<end>"])
    rows: list[list[int]] = []
    for each in conversations:
        text = tokenizer.apply_chat_template(list(each), tokenize=False)
        rows.append(tokenizer.encode(text, add_special_tokens=False))
    # What follows a conversation comes after it: nothing attends to it.
    input_ids = torch.full((len(rows), max(map(len, rows))), end)
    labels = torch.full_like(input_ids, -100)
    for number, row in enumerate(rows):
        input_ids[number, : len(row)] = torch.tensor(row)
        says = False
        for place, token in enumerate(row):
            if says:
                labels[number, place] = token
            says = token == assistant or (says and token != end)
    return input_ids, labels
