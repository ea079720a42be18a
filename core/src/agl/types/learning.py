"""What is learned from: turns with their rewards, and credit, which says why a call got what."""

from typing import Any

from pydantic import BaseModel, Field

from agl.types.reasons import ExclusionReason
from agl.types.records import Record


class Triplet(BaseModel):
    """One turn as 0.3 shows it: prompt, response, and the reward that the turn got."""

    prompt: Any
    response: Any
    reward: float | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class StepCredit(Record):
    """A second comparison of one call: with the same step of sibling rollouts."""

    group: str
    """Calls of sibling rollouts (rollouts of one task) with this key are compared."""
    reward: float
    """What is compared; the return from this call on, say."""
    weight: float = 1.0
    """How much the outcome adds to the advantage."""


class Credit(Record):
    """What a credit rule gave to one call, and why."""

    reward: float | None
    """None where no reward reaches the call."""
    rule: str = ""
    """Name of the rule; the row builder fills it in."""
    sources: list[str] = Field(default_factory=list[str])
    """Ids of the reward spans that it comes from."""
    because: str = ""
    """A sentence for a person, with the arithmetic."""
    group: str = ""
    """Calls of sibling rollouts with this key are compared with each other; "" is everything."""
    step: StepCredit | None = None
    reason: ExclusionReason = "no_reward"
    """Why there is no reward; only read where ``reward`` is None."""


class Advantage(Record):
    """How much better than its siblings a call did."""

    value: float
    group: str
    """What it was compared with."""
    because: str
    """The arithmetic, for a person."""
