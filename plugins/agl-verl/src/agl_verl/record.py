"""What agl adds to verl's metrics of a step, under ``agl/``.

- those of ``agl_learning.collected_metrics``, of the step's groups: ``agl/reward/mean``
  and ``agl/reward/std`` are over rollouts, each once, whatever number of rows it has
  (``critic/score/*`` of verl is over rows); ``agl/time/rollouts`` is the longest group's
- ``agl/groups/trained``, ``agl/groups/dropped``: groups that were not given to verl since its last
  step; what failures left out of these is in ``agl/failures/...``, too
- ``agl/rows/of_an_earlier_run``: rows that verl restored from a checkpoint, of which the ledger of
  this run knows nothing
- ``agl/staleness/mean``, ``agl/staleness/max``: training steps between the request for a group and
  its training

Of a validation:

- ``val-agl/reward/mean`` over rollouts with a reward; ``val-agl/rollouts/succeeded``
- ``val-agl/rollouts/failed``: those are in none of verl's validation metrics
"""

from dataclasses import dataclass, field

from agl_learning.collect.failure_bias import failure_metrics
from agl_learning.collect.results import Collected
from agl_learning.collect.step_metrics import collected_metrics
from agl_records.ledger.ledger import Ledger


@dataclass
class Record:
    """Counts since the last step."""

    dropped: list[Collected] = field(default_factory=list[Collected])
    unknown_rows: int = 0
    validations: list[Collected] = field(default_factory=list[Collected])

    def take_validation(self) -> dict[str, float]:
        """The metrics of a validation; counting starts again."""
        groups, self.validations = self.validations, []
        rewards = [reward for group in groups for reward in group.rewards]
        failed = sum(group.num_failed for group in groups)
        mean = {"val-agl/reward/mean": sum(rewards) / len(rewards)} if rewards else {}
        return {
            **mean,
            "val-agl/rollouts/succeeded": float(sum(len(g.ended) for g in groups) - failed),
            "val-agl/rollouts/failed": float(failed),
        }

    def take(self, groups: list[Collected], step: int) -> dict[str, float]:
        """The metrics of a step; counting starts again."""
        metrics = group_metrics(groups, step)
        asked = [one for group in (*groups, *self.dropped) for one in group.ended]
        metrics |= {f"agl/{name}": value for name, value in failure_metrics(asked).items()}
        metrics["agl/groups/dropped"] = float(len(self.dropped))
        metrics["agl/rows/of_an_earlier_run"] = float(self.unknown_rows)
        self.dropped, self.unknown_rows = [], 0
        return metrics


def group_metrics(groups: list[Collected], step: int) -> dict[str, float]:
    """Sums and means over groups whose ledgers are complete."""
    ledger = Ledger()
    for group in groups:
        ledger.merge(group.ledger)
    ended = [one for group in groups for one in group.ended]
    seconds = max((group.seconds for group in groups), default=0.0)
    of_all = collected_metrics(Collected(ended, ledger, seconds))
    metrics = {f"agl/{name}": float(value) for name, value in of_all.items() if value is not None}
    metrics["agl/groups/trained"] = float(len(groups))
    asked = [int((one.rollout.metadata or {}).get("step", step)) for one in ended]
    if asked:
        metrics["agl/staleness/mean"] = sum(step - one for one in asked) / len(asked)
        metrics["agl/staleness/max"] = float(max(step - one for one in asked))
    return metrics
