"""``per_call``: each reward to the call that it is about."""

from collections.abc import Sequence

from agl.types import Span
from agl_adapters.credit.rewards import Reward, rewards_by_call, unordered, unreadable
from agl_records.credit import CreditRule
from agl_records.training_data import ModelCall
from agl_records.types import Credit


class PerCall(CreditRule):
    """A reward goes to the call that it links to or, without a link, follows; to no other.

    Several rewards of one call add up. A call without a reward of its own gets none, and is not
    trained. A call is compared with the calls of the same agent in sibling rollouts.
    """

    def assign(self, calls: Sequence[ModelCall], spans: Sequence[Span]) -> list[Credit]:
        """The sum of each call's own rewards."""
        if (unsure := unordered(spans)) is not None:
            return [unsure] * len(calls)
        by_call, of_none = rewards_by_call(calls, spans)
        return [_credit(call, given, of_none) for call, given in zip(calls, by_call, strict=True)]


def _credit(call: ModelCall, given: Sequence[Reward], of_none: Sequence[Reward]) -> Credit:
    if (malformed := unreadable(given)) is not None:
        return malformed
    if not given:
        before = "; a reward came before any call" if of_none else ""
        because = f"no reward links to this call or follows it before the next{before}"
        return Credit(reward=None, because=because)
    terms = " + ".join(f"{reward.value:.4g}" for reward in given)
    total = sum(reward.value for reward in given)
    return Credit(
        reward=total,
        sources=[reward.span.span_id for reward in given],
        because=f"the rewards of this call: {terms} = {total:.4g}",
        group=f"agent {call.agent_name}" if call.agent_name else "",
    )
