"""Credit rules: which call gets how much of which reward."""

from collections.abc import Sequence

from agl.adapter import CreditRule
from agl.emitter import find_final_reward
from agl.types import ModelCall, Span


class FinalReward(CreditRule):
    """The last reward of the attempt goes to each of its calls, as in 0.3.

    Last is the reward span with the highest number; where it has several dimensions, the primary
    one counts. Without any reward no call gets one.
    """

    def assign(self, calls: Sequence[ModelCall], spans: Sequence[Span]) -> list[float | None]:
        """The same value for every call."""
        return [find_final_reward(spans)] * len(calls)
