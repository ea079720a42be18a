"""``SFT``: train on the agent's own best rollouts, again and again."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agl_learning.selection import select_best
from agl_runs.options import Share
from agl_unsloth.local import LocalFineTuning

if TYPE_CHECKING:
    from agl_learning.collect.results import Collected


@dataclass(kw_only=True, eq=False, repr=False)
class SFT(LocalFineTuning):
    """Supervised fine-tuning on the calls with the best rewards (rejection sampling).

    Each iteration serves the newest version of the model, runs the tasks, keeps the best calls and
    trains on the tokens that the model sampled in them, as they were recorded. Calls of a row with
    the same reward stay together, so that it is rows which are kept unless ``credit`` gives each
    call its own. The weights of every version are whole folders that vLLM or ``transformers`` load.

    Args:
        keep_fraction: Which part of them is trained, best rewards first; rounded down.
        min_reward: Calls below it are not trained; None for no threshold.
    """

    name = "sft"
    method = "sft"

    keep_fraction: Share = 0.5
    min_reward: float | None = None

    def select(self, collected: "Collected", iteration: int) -> list[dict[str, Any]]:
        return select_best(
            collected,
            iteration,
            keep_fraction=self.keep_fraction,
            min_reward=self.min_reward,
            max_length=self.max_length,
            seed=self.seed,
        )
