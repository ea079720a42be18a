"""The language of the local Tinker: ten words, and a chat template."""

from typing import Any

END = "<end>"
WORDS = ["<pad>", "<user>", "<agent>", END, "red", "green", "blue", "one", "two", "three"]


def build_tokenizer() -> Any:
    """A token is a word."""
    from tests.seams import table_model

    return table_model.build_tokenizer(WORDS)
