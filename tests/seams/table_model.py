"""A model whose answers a person can foresee: any one word, and then the end.

It is a Llama whose layers add nothing, so that the next token depends on the last one alone. It
needs no time to train. The tokenizer alone needs no torch.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

WORDS = [
    *("<pad>", "<user>", "<agent>", "<end>"),
    *("red", "green", "blue", "one", "two", "three", "four", "five", "and"),
]
TEMPLATE = (
    "{% for m in messages %}"
    "{{ '<user> ' if m['role'] == 'user' else '<agent> ' }}{{ m['content'] }} <end> "
    "{% endfor %}"
    "{% if add_generation_prompt %}<agent> {% endif %}"
)
MANY_WORDS = [*WORDS, *(f"word{number}" for number in range(1000))]
"""Of so many, two answers are hardly ever the same."""


def build_tokenizer(words: Sequence[str] = WORDS, template: str = TEMPLATE) -> Any:
    """One token for each word, and a chat template that glues none."""
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<end>", chat_template=template
    )


def build_model(words: Sequence[str] = WORDS) -> Any:
    """After ``<agent>`` each word is equally likely, and after a word the end is nearly certain."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    size, end = len(words), words.index("<end>")
    width = -(-size // 16) * 16
    heads = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    sizes = {"vocab_size": size, "hidden_size": width, "intermediate_size": 16, **heads}
    ids = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": end}
    more = {"max_position_embeddings": 512, "tie_word_embeddings": False}
    config = LlamaConfig(**sizes, **ids, **more)
    model = LlamaForCausalLM(config).eval()
    likes = torch.full((size, size), -9.0)  # [next, current]
    likes[4:, words.index("<agent>")] = 0.0
    likes[:, 4:] = -20.0
    likes[end, 4:] = 9.0
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "layers" in name and "norm" not in name:
                weights.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(size, width))
        model.lm_head.weight.zero_()
        # The last norm makes the embedding of a word as long as the root of the width.
        model.lm_head.weight[:, :size].copy_(likes / width**0.5)
    return model


TINY: dict[str, Any] = {
    **{"model": build_model, "tokenizer": build_tokenizer, "learning_rate": 1e-3},
    **{"device": "cpu", "torch_threads": 1, "show_progress": False},
}
"""Options of an algorithm of agl-torch that trains it."""


async def word_of(llm: Any, task: str, **fields: Any) -> str:
    """The word that a model says."""
    import aiohttp

    body = {"model": llm.model, "messages": [{"role": "user", "content": task}], **fields}
    async with (
        aiohttp.ClientSession(raise_for_status=True) as session,
        session.post(f"{llm.endpoint}/chat/completions", json=body) as response,
    ):
        answer = await response.json()
    return answer["choices"][0]["message"]["content"].split()[0]


def save_model(folder: Path, words: Sequence[str] = WORDS) -> Path:
    """Model and tokenizer as a folder."""
    build_model(words).save_pretrained(folder)
    build_tokenizer(words).save_pretrained(folder)
    return folder
