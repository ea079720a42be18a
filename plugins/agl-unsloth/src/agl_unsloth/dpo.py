"""``DPO``: train on pairs of a better and a worse answer to one prompt, again and again."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge

from agl_learning.pairs import Pairing
from agl_runs.options import AboveZero, Count, NotNegative
from agl_unsloth.local import LocalFineTuning
from agl_unsloth.pairs import no_pairs, select_pairs

if TYPE_CHECKING:
    from agl_learning.collect.results import Collected

NO_SIBLING = "one rollout has no sibling to be compared with"


@dataclass(kw_only=True, eq=False, repr=False)
class DPO(LocalFineTuning):
    """Direct preference optimisation (arXiv:2305.18290) on rollouts of the agent itself.

    Each iteration serves the newest version of the model, runs every task several times, and pairs
    answers of the same prompt, token for token, that led to different rewards. It trains on them as
    they were recorded, against the version that began the iteration.

    Args:
        beta: Penalty on drift from the version before; smaller allows more.
        pairing: Per prompt: ``matched`` pairs the best with the worst answer, the second best with
            the second worst and so on; ``best`` makes one pair; ``all`` makes every pair.
        min_gap: The rewards of a pair differ by more than this.
        max_length: Answers that make more tokens with their prompt are left out, not cut; None for
            no limit.
    """

    name = "dpo"
    method = "dpo"

    iterations: Count = 1
    rollouts_per_task: Annotated[int, Ge(2), NO_SIBLING] = 8  # pyright: ignore[reportIncompatibleVariableOverride]
    adapter_learning_rate = 5e-5
    beta: AboveZero = 0.1
    pairing: Pairing = "matched"
    min_gap: NotNegative = 0.0

    def select(self, collected: "Collected", iteration: int) -> list[dict[str, Any]]:
        pairs = select_pairs(
            collected,
            pairing=self.pairing,
            min_gap=self.min_gap,
            max_length=self.max_length,
            seed=f"{self.seed}/{iteration}",
        )
        if not pairs:
            raise no_pairs(collected, iteration)
        return pairs
