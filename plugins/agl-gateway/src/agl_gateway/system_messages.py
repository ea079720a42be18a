"""System messages in the middle of a conversation, which some chat templates refuse."""

from typing import Any, Literal

import msgspec
from msgspec import Raw

from agl_gateway.dialect import Exchange, dumps
from agl_gateway.errors import RefusedError

SystemMessages = Literal["as_is", "merge", "as_user", "refuse"]
SYSTEM = ("system", "developer")


def change_system_messages(exchange: Exchange, how: SystemMessages) -> bool:
    """Merge, rename or refuse system messages after the first message; whether there are any.

    Raises:
        RefusedError: The model refuses them.
    """
    if how == "as_is" or "messages" not in exchange.fields:
        return False
    first, *others = msgspec.json.decode(exchange.fields["messages"]) or [{}]
    late = [one for one in others if isinstance(one, dict) and one.get("role") in SYSTEM]
    if not late or not isinstance(first, dict):
        return False
    if how == "refuse":
        raise RefusedError(400, "messages: a system message after the first; send it as the user")
    exchange.degraded.append(f"messages: system messages after the first: {how}")
    if how == "merge":
        others = [one for one in others if one not in late]
        head = [first, *late] if first.get("role") in SYSTEM else late
        others = others if head[0] is first else [first, *others]
        first = {
            "role": "system",
            "content": "\n\n".join(_text(one.get("content") or "") for one in head),
        }
    for one in late:
        one["role"] = "user"
    exchange.fields["messages"] = Raw(dumps([first, *others]))
    exchange.request = dumps(exchange.fields)
    return True


def _text(content: Any) -> str:
    parts = content if isinstance(content, list) else [{"text": content}]
    given = [one.get("text") if isinstance(one, dict) else None for one in parts]
    texts = [text for text in given if isinstance(text, str)]
    if len(texts) < len(given):
        message = "messages: a system message has parts without a text, which cannot be merged"
        raise RefusedError(400, message)
    return "\n\n".join(texts)
