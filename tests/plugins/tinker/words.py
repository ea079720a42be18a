"""The language of the local Tinker: ten words, and a chat template."""

from typing import Any

END = "<end>"
WORDS = ["<pad>", "<user>", "<agent>", END, "red", "green", "blue", "one", "two", "three"]
TEMPLATE = (
    "{% for m in messages %}"
    "{{ '<user> ' if m['role'] == 'user' else '<agent> ' }}{{ m['content'] }} <end> "
    "{% endfor %}"
    "{% if add_generation_prompt %}<agent> {% endif %}"
)


def build_tokenizer() -> Any:
    """A token is a word."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token=END, chat_template=TEMPLATE
    )
