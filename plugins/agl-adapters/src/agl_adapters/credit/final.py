"""``final``: the last reward to every call."""

from collections.abc import Sequence

from agl.types import Span
from agl_adapters.credit.rewards import Reward, rewards_of
from agl_records.credit import CreditRule
from agl_records.training_data import ModelCall
from agl_records.types import Credit


class FinalReward(CreditRule):
    """The last reward of the attempt goes to each of its calls, as in 0.3.

    Last is the reward span with the highest number; where it has several dimensions, the primary
    one counts. Without any reward no call gets one. Every call is compared with the calls of all
    sibling rollouts.
    """

    uses_intermediate = False

    def assign(self, calls: Sequence[ModelCall], spans: Sequence[Span]) -> list[Credit]:
        """The same credit for every call."""
        return [final_credit(rewards_of(spans))] * len(calls)


def final_credit(rewards: Sequence[Reward]) -> Credit:
    """What the last of these rewards gives; those that AIR made do not count."""
    own = [reward for reward in rewards if not reward.is_automatic]
    if not own:
        return Credit(reward=None, because="the agent gave no reward in this attempt")
    last = own[-1]
    if last.problem is not None:
        because = f"the last reward of the attempt cannot be read: {last.problem}"
        return Credit(reward=None, reason="refused_reward", because=because)
    others = len(own) - 1
    note = f"; {others} earlier of the attempt do not count" if others else ""
    return Credit(
        reward=last.value,
        sources=[last.span.span_id],
        because=f"the last reward of the attempt is {last.value:.4g}{note}",
    )
