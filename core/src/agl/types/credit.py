"""Credit: what a call got of the rewards, from which, and how it compares."""

from pydantic import BaseModel, ConfigDict, Field

from agl.types.reasons import ExclusionReason


class StepCredit(BaseModel):
    """A second comparison of one call: with the same step of sibling rollouts."""

    model_config = ConfigDict(frozen=True)

    group: str
    """Calls of sibling rollouts (rollouts of one task) with this key are compared."""
    reward: float
    """What is compared; the return from this call on, say."""
    weight: float = 1.0
    """How much the outcome adds to the advantage."""


class Credit(BaseModel):
    """What a credit rule gave to one call, and why."""

    model_config = ConfigDict(frozen=True)

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


class Advantage(BaseModel):
    """How much better than its siblings a call did."""

    model_config = ConfigDict(frozen=True)

    value: float
    group: str
    """What it was compared with."""
    because: str
    """The arithmetic, for a person."""
