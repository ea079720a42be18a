"""A conversation as turns: each message once, however often later calls repeat it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agl_records.training_data import ModelCall
from agl_views.explanations.rollout_view import message_text, said


@dataclass(frozen=True)
class Turn:
    """One message."""

    role: str
    text: str
    """Fit for a terminal."""
    call_id: str = ""
    """Of the call that it is the answer of; "" for what was given to the model."""


def turns(calls: Sequence[ModelCall]) -> list[Turn]:
    """The messages of an attempt's calls, in order.

    A call that goes on from the one before adds its new messages; any other begins anew.
    """
    found: list[Turn] = []
    heard: list[dict[str, Any]] = []
    for call in calls:
        before = list(map(said, call.messages[: len(heard)]))
        same = len(heard) if before == list(map(said, heard)) else 0
        found += [Turn(*message_text(message)) for message in call.messages[same:]]
        answer = [{"role": "assistant", **call.response}] if call.response else []
        found += [Turn(*message_text(message), call.call_id) for message in answer]
        heard = [*call.messages, *answer]
    return found


def common(conversations: Sequence[Sequence[Turn]]) -> int:
    """How many turns they have in common at their beginning."""
    number = 0
    for row in zip(*conversations, strict=False):
        if any((turn.role, turn.text) != (row[0].role, row[0].text) for turn in row):
            break
        number += 1
    return number
