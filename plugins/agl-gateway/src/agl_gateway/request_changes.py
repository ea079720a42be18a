"""What a model's settings change in a request: forced parameters, limits, seeds, system messages.

The record of the call has the request as it was changed.

Seeds: calls of an attempt are numbered in the order in which they arrive, each conversation by
itself. A conversation is known by its opening, the messages before the model's first one. So agents
that talk to the model side by side do not depend on who comes first, as long as their openings
differ.
"""

import hashlib
import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Raw
from pydantic import AfterValidator

from agl_gateway.dialect import NULL, Exchange, dumps
from agl_gateway.errors import NOT_JSON, RefusedError
from agl_records.seeds import SEED, seed_of

ALL = "all"
NOT_FORCED = ("model", "messages", "prompt", "stream", "stream_options", "n")
"""What decides what kind of call it is, and not how its answer is sampled."""


def _sampling(name: str) -> str:
    if name in NOT_FORCED:
        raise ValueError(f"{name!r} cannot be forced; only parameters of sampling can")
    return name


ForcedParameters = dict[
    Literal["all", "train", "val", "test"], dict[Annotated[str, AfterValidator(_sampling)], Any]
]
"""Mode of the rollout, or ``all``, -> field of the request -> its value."""
SystemMessages = Literal["as_is", "merge", "as_user", "refuse"]
SYSTEM = ("system", "developer")

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "top_k": (0, -1),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "typical_p": (1,),
    "best_of": (1,),
}
"""Values by which an agent asks for nothing; of the others: null, 0, false and what is empty."""


def force_parameters(
    exchange: Exchange, parameters: ForcedParameters, mode: str | None
) -> dict[str, Any]:
    """Set the fields of a call that are forced in this mode; return what the agent had there."""
    fields = exchange.fields
    forced: dict[str, Any] = {**parameters}
    values = {**forced.get(ALL, {}), **forced.get(mode or ALL, {})}
    if "max_tokens" in values and "max_completion_tokens" in fields:
        # Two names of one limit; servers refuse both at once.
        fields["max_tokens"] = fields.pop("max_completion_tokens")
    asked: dict[str, Any] = {}
    for name, value in values.items():
        if name in fields:
            wish = msgspec.json.decode(fields.pop(name))
            asks = wish not in NEUTRAL[name] if name in NEUTRAL else bool(wish)
            if wish is not None and wish != value and (value is not None or asks):
                asked[name] = wish
        if value is not None:
            fields[name] = Raw(dumps(value))
    exchange.request = dumps(fields)
    return asked


def limit_tokens(exchange: Exchange, max_tokens: int) -> None:
    """Set the limit of an answer that has none."""
    fields = exchange.fields
    for name in ("max_tokens", "max_completion_tokens"):
        if bytes(fields.get(name, b"null")) != b"null":
            return
        fields.pop(name, None)
    fields["max_tokens"] = Raw(dumps(max_tokens))
    exchange.request = dumps(fields)


class _Message(msgspec.Struct):
    role: Raw = NULL
    content: Raw = NULL


_read_messages = msgspec.json.Decoder(list[_Message]).decode


@dataclass(slots=True)
class Conversation:
    """The numbers of a conversation's calls, from 0."""

    next: int = 0
    free: list[int] = field(default_factory=list[int])
    """Numbers of calls that brought no answer; a heap."""

    def take(self) -> int:
        """The lowest free number."""
        if self.free:
            return heapq.heappop(self.free)
        self.next += 1
        return self.next - 1


def give_seed(
    exchange: Exchange, seed: int, conversations: defaultdict[bytes, Conversation]
) -> Callable[[], None] | None:
    """Set the seed of a call, where it has none: from that of its rollout, and which call it is.

    Returns:
        What lets who asks again, having got no answer, have the same number; None where the agent,
        or what is forced, gave a seed.
    """
    fields = exchange.fields
    if bytes(fields.get(SEED, NULL)) != b"null":
        return None
    opening = _opening(fields)
    conversation = conversations[opening]
    number = conversation.take()
    fields[SEED] = Raw(dumps(seed_of(seed, opening.hex(), number)))
    exchange.request = dumps(fields)
    return partial(heapq.heappush, conversation.free, number)


def _opening(fields: Mapping[str, Raw]) -> bytes:
    """Digest of the messages before the model's first one; requests without messages share one."""
    digest = hashlib.blake2b(digest_size=16)
    try:
        messages = _read_messages(fields.get("messages", Raw(b"[]")))
    except NOT_JSON:
        messages = []  # the backend will refuse them
    for message in messages:
        if bytes(message.role) == b'"assistant"':
            break
        digest.update(message.role)
        digest.update(message.content)
    return digest.digest()


def change_system_messages(exchange: Exchange, how: SystemMessages) -> None:
    """Merge, rename or refuse system messages after the first message: some templates refuse them.

    Raises:
        RefusedError: The model refuses them.
    """
    if how == "as_is" or "messages" not in exchange.fields:
        return
    first, *others = msgspec.json.decode(exchange.fields["messages"]) or [{}]
    late = [one for one in others if isinstance(one, dict) and one.get("role") in SYSTEM]
    if not late or not isinstance(first, dict):
        return
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


def _text(content: Any) -> str:
    parts = content if isinstance(content, list) else [{"text": content}]
    given = [one.get("text") if isinstance(one, dict) else None for one in parts]
    texts = [text for text in given if isinstance(text, str)]
    if len(texts) < len(given):
        message = "messages: a system message has parts without a text, which cannot be merged"
        raise RefusedError(400, message)
    return "\n\n".join(texts)
