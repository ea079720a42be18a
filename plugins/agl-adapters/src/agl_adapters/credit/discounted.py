"""``discounted``: the return to go."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from agl.types import Span
from agl_adapters.credit.rewards import returns_to_go, rewards_by_call, unordered, unreadable
from agl_records.credit import CreditRule
from agl_records.training_data import ModelCall
from agl_records.types import Credit
from agl_runs.options import check_options

Discount = Annotated[float, Ge(0), Le(1)]


@dataclass(eq=False)
class Discounted(CreditRule):
    """A call gets its own reward plus the discounted rewards of the calls after it.

    Own rewards are those of the rule ``per_call``; a final reward is the last call's own. With n
    calls, call k gets ``G_k = r_k + gamma * G_(k+1)``, ``G_(n-1) = r_(n-1)``. A call after which no
    reward comes gets none. Call k is compared with call k of sibling rollouts, as all earlier ones
    would otherwise look worse than all later ones.

    Args:
        gamma: Discount factor of a reward for each earlier call.

    Raises:
        ConfigError: It is not from 0 to 1.
    """

    gamma: Discount = 0.95

    def __post_init__(self) -> None:
        check_options("Discounted", self)

    def assign(self, calls: Sequence[ModelCall], spans: Sequence[Span]) -> list[Credit]:
        """The return from each call on."""
        if (unsure := unordered(spans)) is not None:
            return [unsure] * len(calls)
        by_call, _ = rewards_by_call(calls, spans)
        credits: list[Credit] = []
        for number, (value, sources) in enumerate(returns_to_go(by_call, self.gamma)):
            malformed = unreadable(reward for given in by_call[number:] for reward in given)
            if malformed is not None:
                credits.append(malformed)
                continue
            if not sources:
                because = "no reward comes with this call or after it"
                credits.append(Credit(reward=None, because=because))
                continue
            credits.append(
                Credit(
                    reward=value,
                    sources=sources,
                    because=f"the return from call {number + 1} of {len(calls)} on, at gamma "
                    f"{self.gamma:.4g}, is {value:.4g}",
                    group=f"call {number + 1}",
                )
            )
        return credits
