"""A rollout as people read it: what was said, what became of each answer, the error, the times."""

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

from agl.errors import ConfigError
from agl.store.base import LightningStore
from agl.types import Attempt, Rollout, Span
from agl.utils.text import printable
from agl_records.final_rewards import FinalReward
from agl_records.training_data import ModelCall
from agl_views.explanations.explanation import CallLine, Chain, Explanation, explain
from agl_views.explanations.trace_reader import Part

_CLOSEST = 5
"""Rollouts that are named where a beginning is that of several."""


@dataclass(frozen=True)
class Shown:
    """A rollout, one of its attempts, and the model calls in it."""

    rollout: Rollout
    attempt: Attempt | None
    """The one that is shown; None where there is none yet."""
    num_attempts: int
    calls: list[ModelCall]
    """In their order; of several answers each is one."""
    outcomes: dict[str, CallLine]
    """Call id -> what it got, and whether it was trained."""
    chain: Chain
    spans: list[Span] = field(default_factory=list[Span])
    """Of the attempt; none of a long trace that was not read whole."""

    @property
    def explanation(self) -> Explanation:
        """What is said of the whole rollout."""
        return self.chain.whole

    @property
    def given(self) -> FinalReward:
        """What the attempt that is shown was given in the end."""
        if self.attempt is None:
            return FinalReward()
        return FinalReward.of(self.attempt.status, self.attempt.reward)

    @property
    def num_calls(self) -> int:
        """Of the attempt; of a long trace those that were not read, too."""
        found = self.chain.trace.num_calls
        return len(self.calls) if found is None else found

    @property
    def is_accounted(self) -> bool:
        """Whether an algorithm has accounted for it; else outcomes are the default adapter's."""
        return self.chain.part is not None

    def as_json(self) -> dict[str, Any]:
        """For programs: calls with messages and tokens; spans are those of ``agl spans --json``."""
        outcomes = {call_id: asdict(line) for call_id, line in self.outcomes.items()}
        return {
            "rollout": self.rollout.model_dump(mode="json", exclude={"attempt"}),
            "attempt": self.attempt and self.attempt.model_dump(mode="json"),
            "num_attempts": self.num_attempts,
            "algorithm": self.explanation.algorithm,
            "step": self.explanation.step,
            "rewards": [asdict(reward) for reward in self.explanation.rewards],
            "rewards_refused": [asdict(reward) for reward in self.explanation.refused],
            "excluded_rollout": self.explanation.excluded_rollout or None,
            "calls": [
                {**call.model_dump(mode="json"), "fate": outcomes.get(call.call_id)}
                for call in self.calls
            ],
        }


async def find_rollout(store: LightningStore, beginning: str) -> Rollout:
    """The rollout of an id, or of the beginning of one.

    Raises:
        ConfigError: There is none, or there are several.
    """
    rollout = await store.get_rollout_by_id(beginning)
    if rollout is not None:
        return rollout
    # Ids have these letters at their beginning, and nowhere else.
    part = f"ro-{beginning.removeprefix('ro-')}"
    found = await store.query_rollouts(rollout_id_contains=part, limit=_CLOSEST)
    if found.total == 1:
        return found[0]
    if not found.total:
        raise ConfigError(f"the store has no rollout {beginning!r}. See: agl rollouts")
    named = ", ".join(one.rollout_id for one in found)
    more = f" and {found.total - _CLOSEST} more" if found.total > _CLOSEST else ""
    raise ConfigError(f"{beginning!r} is the beginning of several rollouts: {named}{more}")


async def show(
    store: LightningStore,
    beginning: str,
    number: int | None = None,
    step: int | None = None,
    *,
    read: Part | None = None,
) -> Shown:
    """Read what is shown of a rollout.

    Args:
        store: Where it is.
        beginning: Of its id.
        number: Of the attempt, from 1; None for the last.
        step: As this step of the algorithm accounted for it; None for the last that did.
        read: Which calls of a long trace are read, of this attempt; None for all spans, however
            many.

    Raises:
        ConfigError: There is no such rollout, attempt or account.
    """
    rollout = await find_rollout(store, beginning)
    attempts = list(await store.query_attempts(rollout.rollout_id))
    by_number = {one.sequence_id: one for one in attempts}
    if number is not None and number not in by_number:
        has = ", ".join(map(str, by_number)) or "none"
        raise ConfigError(f"rollout {rollout.rollout_id!r} has no attempt {number}; it has {has}")
    attempt = by_number[number] if number else attempts[-1] if attempts else None
    attempt_id = attempt.attempt_id if attempt else ""
    if read is not None and attempt is not None:
        read = replace(read, attempt_id=attempt_id)
    chain = await explain(store, rollout.rollout_id, step, read=read)
    calls = [call for call in chain.calls.values() if call.attempt_id == attempt_id]
    return Shown(
        rollout,
        attempt,
        len(attempts),
        sorted(calls, key=lambda call: (call.sequence_id, call.choice or 0)),
        chain.whole.lines,
        chain,
        [span for span in chain.trace.spans if span.attempt_id == attempt_id]
        if chain.trace.is_whole
        else [],
    )


def message_text(message: dict[str, Any]) -> tuple[str, str]:
    """The role of a message, and what it says, tool calls included."""
    role = printable(str(message.get("role") or "?"))
    text = printable(text_of(message.get("content") or message.get("refusal") or ""))
    for called in tool_calls(message):
        text += f"{chr(10) if text else ''}calls {printable(called)}"
    return role, text


def tool_calls(message: dict[str, Any]) -> list[str]:
    """The tools that a message calls, as ``name(arguments)``."""
    calls: list[dict[str, Any]] = message.get("tool_calls") or []  # ``make_call`` has checked them
    return [
        f"{function.get('name')}({function.get('arguments')})"
        if (function := one.get("function"))
        else f"{one}"
        for one in calls
    ]


def text_of(content: Any) -> str:
    """Text as it is; parts of a message one by one; all else as JSON."""
    if isinstance(content, str):
        return content
    parts = cast("list[Any]", content) if isinstance(content, list) else []
    if parts and all(isinstance(part, dict) for part in parts):
        return "\n".join(
            str(part["text"]) if "text" in part else f"[{part.get('type', '?')}]" for part in parts
        )
    return json.dumps(content, ensure_ascii=False, default=str)
