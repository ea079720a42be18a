"""``stepwise``: the whole rollout against its siblings, and each step against the same step."""

import hashlib
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agl.types import Span
from agl_adapters.credit.discounted import Discount
from agl_adapters.credit.final import final_credit
from agl_adapters.credit.rewards import (
    returns_to_go,
    rewards_by_call,
    rewards_of,
    unordered,
    unreadable,
)
from agl_records.credit import CreditRule
from agl_records.training_data import ModelCall
from agl_records.types import Credit, StepCredit
from agl_runs.options import NotNegative, check_options


@dataclass(eq=False)
class Stepwise(CreditRule):
    """Two comparisons in one advantage, as in GiGPO (arXiv:2505.10978).

    The last reward of the attempt is compared with those of sibling rollouts, as with ``final``. To
    that comes, ``weight`` times, the comparison of the call's discounted return with the returns of
    the same step of sibling rollouts, which tells good steps of a bad rollout from bad ones.

    Where it differs from the paper: the first comparison takes the last reward, not the sum of all,
    which would count a final score twice where the agent emits both it and its parts.

    Args:
        same: What is the same step: ``number``, the agent's n-th call; ``prompt``, a call with the
            very same prompt (the paper's anchor states).
        weight: Weight of the second comparison.
        gamma: Discount factor of a reward for each earlier call, from 0 to 1.

    Raises:
        ConfigError: An option is out of its range.
    """

    same: Literal["number", "prompt"] = "number"
    weight: NotNegative = 1.0
    gamma: Discount = 0.95

    def __post_init__(self) -> None:
        check_options("Stepwise", self)

    def assign(self, calls: Sequence[ModelCall], spans: Sequence[Span]) -> list[Credit]:
        """The last reward for every call, with the return of its step beside it."""
        whole = final_credit(rewards_of(spans))
        if whole.reward is None:
            return [whole] * len(calls)
        if (unsure := unordered(spans)) is not None:
            return [unsure] * len(calls)
        by_call, _ = rewards_by_call(calls, spans)
        returns = returns_to_go(by_call, self.gamma)
        credits: list[Credit] = []
        seen: Counter[str | None] = Counter()
        for number, (call, (value, sources)) in enumerate(zip(calls, returns, strict=True)):
            seen[call.agent_name] += 1
            malformed = unreadable(reward for given in by_call[number:] for reward in given)
            if malformed is not None:
                credits.append(malformed)
                continue
            step = StepCredit(
                group=self._group(call, seen[call.agent_name]), reward=value, weight=self.weight
            )
            because = f"{whole.because}; the return of this step ({step.group}) is {value:.4g}"
            used = [*whole.sources, *(s for s in sources if s not in whole.sources)]
            credits.append(
                whole.model_copy(update={"because": because, "sources": used, "step": step})
            )
        return credits

    def _group(self, call: ModelCall, number: int) -> str:
        agent = f" of agent {call.agent_name}" if call.agent_name else ""
        if self.same == "number":
            return f"call {number}{agent}"
        tokens = array("q", call.prompt_token_ids or [])
        return f"prompt {hashlib.sha256(tokens.tobytes()).hexdigest()[:12]}{agent}"
