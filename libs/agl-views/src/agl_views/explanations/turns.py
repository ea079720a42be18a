"""Conversations as turns: each message once, however often later calls repeat it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from agl_records.training_data import ModelCall
from agl_views.explanations.rollout_view import message_text


@dataclass(frozen=True)
class Turn:
    """One message."""

    role: str
    text: str
    """Fit for a terminal."""
    call_id: str = ""
    """Of the call that it is the answer of; "" for what was given to the model."""


def answer_of(call: ModelCall) -> list[dict[str, Any]]:
    """The answer of a call as a message; nothing where it has none."""
    return [{"role": "assistant", **call.response}] if call.response else []


def num_repeated(call: ModelCall, before: ModelCall | None) -> int:
    """How many messages a call repeats of the one before it: all that were said, or none."""
    if before is None:
        return 0
    said = [*before.messages, *answer_of(before)]
    repeats = len(call.messages) >= len(said) and all(map(is_same, said, call.messages))
    return len(said) if repeats else 0


def is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether both messages say the same; thoughts are seldom sent again."""
    return all(
        (one.get(k) or None) == (other.get(k) or None) for k in ("role", "content", "tool_calls")
    )


def turns(calls: Sequence[ModelCall]) -> list[Turn]:
    """The messages of an attempt's calls, in order.

    A call that goes on from the one before adds its new messages; any other begins anew.
    """
    found: list[Turn] = []
    for before, call in zip((None, *calls), calls, strict=False):
        new = call.messages[num_repeated(call, before) :]
        found += [Turn(*message_text(message)) for message in new]
        found += [Turn(*message_text(message), call.call_id) for message in answer_of(call)]
    return found


def num_common(conversations: Sequence[Sequence[Turn]]) -> int:
    """How many turns they have in common at their beginning."""
    said = [[(turn.role, turn.text) for turn in one] for one in conversations]
    rows = zip(*said, strict=False)
    return sum(1 for _ in takewhile(lambda row: len({*row}) == 1, rows))
