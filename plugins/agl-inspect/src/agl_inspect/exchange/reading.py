"""What an export reads of one rollout: the attempt that counts, its usable calls, their credit."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agl.errors import AdapterError
from agl.store.base import LightningStore
from agl.types import Attempt, Rollout, Span
from agl_learning.collect.task_order import digest
from agl_records.calls.attempts import unused_attempts
from agl_records.calls.conversations import ChatMessages, conversation, tool_spans_of
from agl_records.calls.matching import selects
from agl_records.calls.reader import Recorded, by_attempt, recorded_and_unrecognised
from agl_records.calls.span_tree import ordered
from agl_records.credit import CreditRule, credits_of
from agl_records.training_data import ModelCall
from agl_records.types import ExclusionReason
from agl_views.explanations.turns import is_same

CANARY = "canary"
"""Key in the metadata of a rollout that was answered in the place of the agent's model."""
JUDGES = "judges"
"""The same of one in which a judge was asked about others."""


@dataclass(frozen=True)
class Said:
    """A usable call: what was said, and what it got for it."""

    call: ModelCall
    chat: ChatMessages
    """Its last message is the answer."""
    reward: float | None
    rollout_id: str

    @property
    def said(self) -> str:
        """The answer, to compare it with others."""
        return digest([self.answer])

    @property
    def prompt(self) -> list[dict[str, Any]]:
        return self.chat["messages"][:-1]

    @property
    def answer(self) -> dict[str, Any]:
        return self.chat["messages"][-1]


@dataclass
class ReadRollout:
    """One rollout."""

    rollout: Rollout
    attempts: list[Attempt]
    spans: list[Span]
    """Of all attempts."""
    used_spans: list[Span] = field(default_factory=list[Span])
    """Those of the attempt that counts."""
    said: list[Said] = field(default_factory=list[Said])
    exclusions: list[tuple[str, ExclusionReason]] = field(
        default_factory=list[tuple[str, ExclusionReason]]
    )
    """Id and reason of each other call."""


async def read_rollout(
    store: LightningStore,
    rollout: Rollout,
    credit: CreditRule | None = None,
    agent_match: re.Pattern[str] | None = None,
) -> ReadRollout:
    """Read a rollout; each of its calls is usable as text, or excluded; ``credit`` rewards them."""
    attempts = list(await store.query_attempts(rollout.rollout_id))
    spans = list(await store.query_spans(rollout.rollout_id))
    read = ReadRollout(rollout, attempts, spans)
    groups = by_attempt(spans)
    unused = unused_attempts(groups, attempts)
    for key, own in groups.items():
        records = recorded_and_unrecognised(own)
        if key in unused:
            read.exclusions.extend(
                (part.call_id, unused[key][0]) for record in records for part in record.call.parts()
            )
        else:
            read.used_spans = ordered(own)
            tools = tool_spans_of(read.used_spans)
            rewards: list[float | None] = [None] * len(records)
            if credit is not None:
                calls, name = [record.call for record in records], type(credit).__name__
                given = credits_of(credit, name, calls, read.used_spans, rollout.rollout_id)
                rewards = [one.reward for one in given]
            for record, reward in zip(records, rewards, strict=True):
                call = record.call
                reason = _why_not(record, agent_match)
                if reason is None and call.choices:
                    others = (part for part in call.parts() if part.choice != call.choice)
                    read.exclusions.extend((part.call_id, "unused_choice") for part in others)
                if reason is None:
                    try:
                        chat = conversation(call, tools.get(call.call_id, ()))
                    except AdapterError:
                        reason = "malformed_message"
                    else:
                        read.said.append(Said(call, chat, reward, call.rollout_id))
                if reason is not None:
                    read.exclusions.extend((part.call_id, reason) for part in call.parts())
    return read


def _why_not(record: Recorded, agent_match: re.Pattern[str] | None) -> ExclusionReason | None:
    call = record.call
    if not selects(agent_match, call.agent_name):
        return "agent_not_selected"
    if record.problem is not None:
        return record.problem[0]
    if call.response is None:
        return "malformed"
    return None if call.messages else "malformed_message"


def threads(said: Sequence[Said]) -> list[tuple[list[dict[str, Any]], list[Said]]]:
    """The conversations of a rollout: the messages of each, and its calls, the shortest first.

    A call is of the longest conversation that its own messages go on from, or that begins with
    them; if there is none, as with another agent or a rewritten history, it begins a new one.
    """
    found: list[tuple[list[dict[str, Any]], list[Said]]] = []
    for one in said:
        messages = one.chat["messages"]
        fits = (t for t in found if all(map(is_same, t[0], messages)))
        thread = max(fits, key=lambda t: len(t[0]), default=None)
        if thread is None:
            found.append(thread := ([], []))
        thread[0].extend(messages[len(thread[0]) :])
        thread[1].append(one)
    for _, calls in found:
        calls.sort(key=lambda one: len(one.prompt))
    return found


def tools_of(calls: Sequence[Said]) -> list[dict[str, Any]] | None:
    """The tools that any of these calls was offered, each once."""
    found: list[dict[str, Any]] = []
    for tool in (tool for one in calls for tool in one.chat["tools"] or ()):
        found += [tool] * (tool not in found)
    return found or None
