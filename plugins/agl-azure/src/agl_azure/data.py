"""What is sent to Azure for training, and what it will cost: pure functions."""

import json
from collections.abc import Sequence
from typing import Any, Protocol

from agl_learning.trainer.billing import Bill

BYTES_PER_TOKEN = 4
"""Of text in UTF-8, for English; the real number is in the job once it has ended."""
TOKENS_PER_MESSAGE = 4
"""What a message costs beside its text."""
MIN_EXAMPLES = 10
"""With fewer Azure refuses a training file."""
MAX_BYTES = 512 * 2**20
"""Of a training file."""
_FILTER_WORDS = ("rai check", "content filter", "content_filter", "contentfilter", "harm")
_FIELDS = ("role", "name", "content", "tool_calls", "tool_call_id", "function_call")
"""Of a message; a training file with other ones is refused."""


class Conversation(Protocol):
    """A row of the adapter ``chats``, as far as it is needed here."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    answers: list[int]


def example_of_chat(row: Conversation) -> dict[str, Any]:
    """A row as a line of a training file.

    Answers that are not the row's own (an example in the prompt, an answer of a call that is not
    trained) get ``weight`` 0, which trains nothing on them. What follows the last of its own is
    left out: it would change nothing, and be paid for.
    """
    messages: list[dict[str, Any]] = []
    for position, message in enumerate(row.messages[: row.answers[-1] + 1]):
        kept = {name: message[name] for name in _FIELDS if message.get(name) not in (None, [])}
        if message["role"] == "assistant" and position not in row.answers:
            kept["weight"] = 0
        messages.append(kept)
    return {"messages": messages, **({"tools": row.tools} if row.tools else {})}


def count_tokens(example: dict[str, Any]) -> int:
    """About how many tokens an example has."""
    text = sum(
        len(_text(message.get("content")).encode())
        + len(json.dumps(message["tool_calls"]) if message.get("tool_calls") else "")
        for message in example["messages"]
    )
    tools = len(json.dumps(example["tools"])) if example.get("tools") else 0
    per_message = TOKENS_PER_MESSAGE * len(example["messages"])
    return -(-(text + tools) // BYTES_PER_TOKEN) + per_message


def _text(content: Any) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    return "".join(str(part.get("text", "")) for part in content)


def bill(examples: Sequence[dict[str, Any]], epochs: int, price: float | None) -> Bill:
    """What training on these will cost."""
    tokens = sum(map(count_tokens, examples))
    return Bill(len(examples), tokens, epochs, price, is_estimate=True)


def is_filtered(message: str) -> bool:
    """Whether a message says that content was judged harmful."""
    lower = message.lower()
    return any(word in lower for word in _FILTER_WORDS)
