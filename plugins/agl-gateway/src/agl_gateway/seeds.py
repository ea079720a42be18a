"""The seed of a call whose agent gives none: from that of its rollout, and which call it is.

Calls of an attempt are numbered in the order in which they arrive, each conversation by itself: a
conversation is known by its opening, the messages before the model's first one. So agents that talk
to the model side by side do not depend on who comes first, as long as their openings differ.
"""

import hashlib
import heapq
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from msgspec import Raw

from agl_gateway.dialect import NULL, Exchange, dumps
from agl_gateway.errors import NOT_JSON
from agl_records.seeds import SEED, seed_of


class _Message(msgspec.Struct):
    role: Raw = NULL
    content: Raw = NULL


_read_messages = msgspec.json.Decoder(list[_Message]).decode


@dataclass(slots=True)
class _Conversation:
    next: int = 0
    free: list[int] = field(default_factory=list[int])
    """Numbers of calls that brought no answer; a heap."""

    def take(self) -> int:
        if self.free:
            return heapq.heappop(self.free)
        self.next += 1
        return self.next - 1


class Calls:
    """The numbers of an attempt's calls."""

    __slots__ = ("_conversations",)

    def __init__(self) -> None:
        self._conversations: defaultdict[bytes, _Conversation] = defaultdict(_Conversation)

    def take(self, opening: bytes) -> "CallNumber":
        """The lowest free number of a conversation."""
        conversation = self._conversations[opening]
        return CallNumber(opening, conversation.take(), conversation)


@dataclass(slots=True, frozen=True)
class CallNumber:
    """Which call of its attempt one is."""

    opening: bytes
    """Of the conversation."""
    number: int
    """From 0, in the conversation."""
    _conversation: _Conversation

    def release(self) -> None:
        """Let who asks again, having got no answer, have the same number."""
        heapq.heappush(self._conversation.free, self.number)


def give_seed(exchange: Exchange, seed: int, calls: Calls) -> CallNumber | None:
    """Set the seed of a call, where it has none; the record has it too.

    Args:
        exchange: The call.
        seed: Of its rollout.
        calls: Of its attempt.

    Returns:
        Its number; None where the agent, or what is forced, gave a seed.
    """
    fields = exchange.fields
    if bytes(fields.get(SEED, NULL)) != b"null":
        return None
    taken = calls.take(opening(fields))
    fields[SEED] = Raw(dumps(seed_of(seed, taken.opening.hex(), taken.number)))
    exchange.request = dumps(fields)
    return taken


def opening(fields: Mapping[str, Raw]) -> bytes:
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
