"""What came of the rollouts of one step or evaluation."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from agl.types import Rollout
from agl_learning.collect.pass_at_k import over_copies
from agl_records.ledger.ledger import Ledger
from agl_records.training_data import TrainingRow
from agl_records.types import ExclusionReason
from agl_runs.failures import Failures, RolloutFailure
from agl_runs.mixed_calls import Ran

COUNTED = "counted"
"""Key in the metadata of a rollout whose bad end a start has counted: no later start runs it
again."""

PENALTY = "penalty"
"""Name of the reward of a rollout that failed and is penalised."""


@dataclass
class Ended:
    """A rollout that has ended, and what was read from its spans."""

    rollout: Rollout
    group: int
    """Position of its task in the request."""
    reward: float | None
    """The final one of the attempt that counts; None where what failed it excludes it."""
    rows: list[TrainingRow] = field(default_factory=list[TrainingRow])
    tokens_left_out: tuple[int, int] = (0, 0)
    """Sampled and given ones of calls of the model that are in no row, as in a failed attempt."""
    problem: str | None = None
    """Why it has no reward, where one was given that cannot be read."""
    is_late: bool = False
    """Whether it was cancelled because it had not ended in time."""
    failed: RolloutFailure | None = None
    """What failed it, or a model call of its attempt that counts."""
    unusable: tuple[ExclusionReason, str] | None = None
    """Why its rows may not be trained."""
    rewards: dict[str, float] = field(default_factory=dict[str, float])
    """The dimensions of ``reward``; none where it is None."""
    penalty: float | None = None
    """Its reward in the place of its own, where it failed and is penalised."""
    ran: Ran | None = None
    """Where and when it succeeded, and with which calls."""


@dataclass
class Collected:
    """The rollouts of one step or evaluation."""

    ended: list[Ended]
    ledger: Ledger
    """Open: what becomes of ``rows`` is for the caller to say."""
    seconds: float
    lost: list[Ended] = field(default_factory=list[Ended])
    """Those that failed, or that a dead start of the run took along, and that ran once more; their
    calls are excluded."""

    others: list[Rollout] = field(default_factory=list[Rollout])
    """Those in which a judge was asked about these; nothing of them is trained."""
    judged: dict[str, float] = field(default_factory=dict[str, float])
    """Metrics of that; see ``agl_learning.collect.group_judge``."""

    def of_model(self, name: str) -> "Collected":
        """What one of several trained models has of it: its rows, and its part of the ledger."""
        ended = [
            replace(
                one,
                rows=[row for row in one.rows if row.model == name],
                tokens_left_out=(0, 0),  # nobody knows of which model
            )
            for one in self.ended
        ]
        return replace(self, ended=ended, ledger=self.ledger.of_model(name))

    @property
    def rewards(self) -> list[float]:
        """Of the rollouts that have one."""
        return [one.reward for one in self.ended if one.reward is not None]

    @property
    def mean_reward(self) -> float | None:
        """Over the rollouts that have one; a failed rollout is no zero."""
        return sum(self.rewards) / len(self.rewards) if self.rewards else None

    def over_copies(self, copies: int) -> dict[str, float]:
        """``mean@n`` and ``pass@k``, where each task was to run so often."""
        groups: dict[int, list[float]] = {}
        for one in self.ended:
            if one.reward is not None:
                groups.setdefault(one.group, []).append(one.reward)
        return over_copies(groups.values(), copies)

    @property
    def num_failed(self) -> int:
        """Rollouts that did not succeed."""
        return sum(one.rollout.status != "succeeded" for one in self.ended)

    @property
    def rollouts(self) -> list[Rollout]:
        """All that the ledger knows."""
        return [*(one.rollout for one in (*self.ended, *self.lost)), *self.others]

    @property
    def num_infrastructure(self) -> int:
        """Rollouts that succeeded although servers or the network failed a model call of theirs."""
        return sum(
            one.failed is not None and one.rollout.status == "succeeded" for one in self.ended
        )

    def exclude_lost(self, one: Ended) -> None:
        """Say of the calls of a rollout in whose place another ran that they train nothing."""
        for row in one.rows:
            self.ledger.exclude_row(row, "failed_attempt", "its rollout failed, and ran again")
        self.lost.append(one)

    def failures(self) -> dict[str, int]:
        """How often each kind of failure ended a rollout, most frequent first."""
        failed = (one for one in self.ended if one.rollout.status != "succeeded")
        return dict(Counter(one.failed.cause for one in failed if one.failed).most_common())


def drop_groups(ended: Sequence[Ended], failures: Failures) -> None:
    """Let no rollout be trained in whose group one failed so that ``failures`` drops the group."""
    dropped = {one.group: one for one in ended if failures.policy(one.failed) == "drop_group"}
    for one in ended:
        if (cause := dropped.get(one.group)) and cause.failed and one.unusable is None:
            why = f"rollout {cause.rollout.rollout_id!r} of its task failed: {cause.failed.why}"
            one.unusable = ("unused_group", why)
