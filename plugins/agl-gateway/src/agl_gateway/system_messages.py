"""System messages in the middle of a conversation, which some chat templates refuse."""

from typing import Any, Literal, get_args

import msgspec
from msgspec import Raw

from agl.errors import ConfigError
from agl_gateway.dialect import Exchange, dumps
from agl_gateway.errors import RefusedError

SystemMessages = Literal["as_is", "merge", "as_user", "refuse"]
SYSTEM = ("system", "developer")


def change_system_messages(exchange: Exchange, how: SystemMessages) -> bool:
    """Do with system messages after the first message what the model wants; whether there are any.

    Raises:
        RefusedError: The model refuses them.
    """
    if how == "as_is" or "messages" not in exchange.fields:
        return False
    first, *others = msgspec.json.decode(exchange.fields["messages"]) or [{}]
    late = [one for one in others if isinstance(one, dict) and one.get("role") in SYSTEM]
    if not late:
        return False
    if how == "refuse":
        raise RefusedError(400, "messages: a system message after the first; send it as the user")
    exchange.degraded.append("messages: system messages after the first are sent otherwise")
    if how == "as_user":
        for one in late:
            one["role"] = "user"
        messages = [first, *others]
    else:
        rest = [one for one in others if not any(one is other for other in late)]
        begin = [] if first.get("role") in SYSTEM else [first]
        texts = [_text(one.get("content")) for one in ([] if begin else [first]) + late]
        messages = [{"role": "system", "content": "\n\n".join(texts)}, *begin, *rest]
    exchange.fields["messages"] = Raw(dumps(messages))
    exchange.request = dumps(exchange.fields)
    return True


def check_system_messages(how: Any, where: str) -> SystemMessages:
    """The setting out of a model list.

    Raises:
        ConfigError: It is none.
    """
    if how not in (known := get_args(SystemMessages)):
        raise ConfigError(f"{where}: system_messages is {how!r}; expected {', '.join(known)}")
    return how


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "\n\n".join(one["text"] for one in content)
