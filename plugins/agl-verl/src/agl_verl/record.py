"""What agl adds to verl's metrics of a step, under ``agl/``.

- ``agl/reward/mean``, ``agl/reward/std``: over rollouts, each once, whatever number of rows it has
  (``critic/score/*`` of verl is over rows)
- ``agl/rollouts/succeeded``, ``agl/rollouts/failed``; ``agl/rollouts/infrastructure``: those that
  succeeded although servers or the network failed a model call; ``agl/groups/trained``,
  ``agl/groups/dropped``: groups that were not given to verl since its last step
- ``agl/calls/total``, ``agl/calls/trained``, ``agl/calls/excluded/<reason>`` of the step's groups
- ``agl/rows/of_an_earlier_run``: rows that verl restored from a checkpoint, of which the ledger of
  this run knows nothing
- ``agl/staleness/mean``, ``agl/staleness/max``: training steps between the request for a group and
  its training

Of a validation:

- ``val-agl/reward/mean`` over rollouts with a reward; ``val-agl/rollouts/succeeded``
- ``val-agl/rollouts/failed``: those are in none of verl's validation metrics
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agl_learning.accounts import deviation

if TYPE_CHECKING:
    from agl_learning.collect import Collected


@dataclass
class Record:
    """Counts since the last step."""

    dropped: int = 0
    unknown_rows: int = 0
    val_rewards: list[float] = field(default_factory=list[float])
    val_rollouts: int = 0
    val_failed: int = 0

    def validated(self, collected: "Collected") -> None:
        """A validation group has ended."""
        self.val_rewards += collected.rewards
        self.val_rollouts += len(collected.ended)
        self.val_failed += collected.num_failed

    def take_validation(self) -> dict[str, float]:
        """The metrics of a validation; counting starts again."""
        rewards, count, failed = self.val_rewards, self.val_rollouts, self.val_failed
        self.val_rewards, self.val_rollouts, self.val_failed = [], 0, 0
        mean = {"val-agl/reward/mean": sum(rewards) / len(rewards)} if rewards else {}
        return {
            **mean,
            "val-agl/rollouts/succeeded": float(count - failed),
            "val-agl/rollouts/failed": float(failed),
        }

    def take(self, groups: "list[Collected]", step: int) -> dict[str, float]:
        """The metrics of a step; counting starts again."""
        metrics = group_metrics(groups, step)
        metrics["agl/groups/dropped"] = float(self.dropped)
        metrics["agl/rows/of_an_earlier_run"] = float(self.unknown_rows)
        self.dropped = self.unknown_rows = 0
        return metrics


def group_metrics(groups: "list[Collected]", step: int) -> dict[str, float]:
    """Sums and means over groups whose ledgers are complete."""
    rewards = [reward for group in groups for reward in group.rewards]
    reasons: Counter[str] = Counter()
    for group in groups:
        reasons.update(group.ledger.reasons())
    ended = [one for group in groups for one in group.ended]
    failed = sum(group.num_failed for group in groups)
    asked = [int((one.rollout.metadata or {}).get("step", step)) for one in ended]
    metrics = {
        "agl/rollouts/succeeded": float(len(ended) - failed),
        "agl/rollouts/failed": float(failed),
        "agl/rollouts/infrastructure": float(sum(group.num_infrastructure for group in groups)),
        "agl/groups/trained": float(len(groups)),
        "agl/calls/total": float(sum(len(group.ledger.calls) for group in groups)),
        "agl/calls/trained": float(sum(len(group.ledger.trained) for group in groups)),
        **{f"agl/calls/excluded/{reason}": float(count) for reason, count in reasons.items()},
    }
    if rewards:
        metrics["agl/reward/mean"] = sum(rewards) / len(rewards)
        metrics["agl/reward/std"] = deviation(rewards) or 0.0
    if asked:
        metrics["agl/staleness/mean"] = sum(step - one for one in asked) / len(asked)
        metrics["agl/staleness/max"] = float(max(step - one for one in asked))
    return metrics
