"""The reward of a rollout, and whether it counts: the one rule of all that shows rewards.

The final reward of a rollout counts where the rollout succeeded, as training has it. What was given
to one that failed, was cancelled or has not ended was given on the way: it is shown as that, and is
in no mean, spread, curve or order of rewards.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from agl.types import AttemptedRollout, Rollout, SpanLike
from agl.utils.rewards import GRADES, place_of_reward

_Span = TypeVar("_Span", bound=SpanLike)


@dataclass(frozen=True)
class FinalReward:
    """What a rollout, or an attempt, was given in the end."""

    reward: float | None = None
    """What counts; None where nothing does."""
    on_the_way: float | None = None
    """The last that was given to one that did not succeed."""

    @classmethod
    def of(cls, status: str, given: float | None) -> "FinalReward":
        """By the status of the rollout or attempt, and the final reward in its spans."""
        return cls(given) if status == "succeeded" else cls(on_the_way=given)

    def text(self, none: str = "") -> str:
        """For people; ``none`` is said where there is none of both."""
        if self.reward is not None:
            return f"{self.reward:.4g}"
        return none if self.on_the_way is None else f"{self.on_the_way:.4g} on the way"

    __str__ = text


def final_reward(rollout: Rollout) -> FinalReward:
    """What a rollout of a store was given; its ``reward`` is what counts of that."""
    given = rollout.attempt.reward if isinstance(rollout, AttemptedRollout) else None
    return FinalReward.of(rollout.status, given)


def graded_only(spans: Sequence[_Span]) -> Sequence[_Span]:
    """Those of an attempt's spans whose rewards count: all, or the grade, the runner's last."""
    grades = [one for one in spans if place_of_reward(one) > GRADES]
    return sorted(grades, key=place_of_reward)[-1:] or spans
