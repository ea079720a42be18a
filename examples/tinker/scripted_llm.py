"""A model server for dry runs without a model: player, answerer and search engine in one.

The player searches once where it may, asks for the first letter, and then guesses through the
nouns of the category; the answerer knows which letter the secret begins with.
"""

import re
from typing import Any

from q20_agent import load_nouns

NOUNS = [*load_nouns("train"), *load_nouns("test")]


def scripted_reply(request: dict[str, Any]) -> str:
    """What ``agl_testing.echo_llm.EchoLLM`` answers to the players of this folder."""
    messages = request["messages"]
    first = messages[0]["content"]
    if first.startswith("You answer"):
        secret = _first(r"The secret is: (\w+)", first)
        asked = _first(r"begin with one of: (\w+)", first)
        return "Yes." if secret[0] in asked else "No."
    if first.startswith("You are a search engine"):
        return "It is well known. Much has been written about it."
    category = _first(r"its category is: (\w+)", first)
    said = [m["content"] for m in messages if m["role"] == "assistant"]
    if "search:" in first and not said:
        return f"search: {category}"
    names = [noun["answer"] for noun in NOUNS if noun["category"] == category]
    asked = [text for text in said if text.startswith("question")]
    if not asked:
        return "question: Does it begin with one of: abcdefghijkl"
    early = messages[2 * said.index(asked[0]) + 2]["content"] == "yes"
    names = [name for name in names if (name[0] <= "l") == early]
    return f"guess: {names[sum(text.startswith('guess') for text in said)]}"


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"expected {pattern!r} in {text!r}")
    return found[1]
