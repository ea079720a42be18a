"""The parts of the answer to why one token got what it got."""

from dataclasses import dataclass, field

from agl_learning.trainer.comparison import Compared
from agl_views.explanations.explanation import CallLine
from agl_views.explanations.reward_lines import RewardLine


@dataclass(frozen=True)
class Term:
    """One change."""

    name: str
    value: float | None
    """What it adds; None where nobody kept it."""
    because: str
    factor: float | None = None
    """What the sum of those before is multiplied by; None for a summand."""


@dataclass(frozen=True)
class Member:
    """A rollout of the group, this one included."""

    rollout_id: str
    reward: float | None
    """Its final reward, before any rule."""
    credit: float | None
    """Mean of what those of its calls got that are compared."""
    is_counted: bool
    """Whether it is in the mean."""
    left_out: str = ""
    """Why it is not."""


@dataclass(frozen=True)
class Group:
    """What a call was compared with."""

    name: str
    """"" for all calls of the sibling rollouts."""
    members: tuple[Member, ...]
    mean: float
    """Over the rollouts that are counted, each with weight 1."""
    std: float
    """Sample standard deviation of the same."""

    @property
    def num_counted(self) -> int:
        """How many rollouts are in the mean."""
        return sum(one.is_counted for one in self.members)


@dataclass(frozen=True)
class Bin:
    """Where the ledger has the token's call."""

    name: str
    """``trained``, ``excluded``, or ``open`` where no algorithm has accounted for it."""
    reason: str = ""
    """Code of why it was not trained."""
    because: str = ""
    row: int | None = None
    position: int | None = None
    """Of the token in that row."""
    is_lost: bool = False
    """Whether the run went back behind its step."""


@dataclass(frozen=True)
class Step:
    """The step of the algorithm, and what is known of its gradient."""

    run: str | None
    algorithm: str | None
    number: int | None
    generation: int
    sampled_by: str | None
    """Weights that sampled the token."""
    made: str | None
    """Weights that came out."""
    num_trained: int
    """Rollouts of it of which something was trained."""
    num_rollouts: int
    """Rollouts in the means of the loss: these, and their siblings whose advantage is 0."""
    num_tokens: int | None = None
    """Sampled tokens of this rollout that are in these means; None where not all of it is read."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """Those of the run's metrics that are about gradients; none where its folder is not here."""


@dataclass(frozen=True)
class Recomputed:
    """Numbers of the ledger beside those that come out now."""

    numbers: tuple[Compared, ...]
    problem: str = ""
    """Why something could not be computed."""

    @property
    def differs(self) -> bool:
        """Whether any number is another one."""
        return not all(one.same for one in self.numbers)


@dataclass(frozen=True)
class TokenExplanation:
    """All there is to say about one sampled token."""

    rollout_id: str
    call: CallLine
    """What the call that sampled it got."""
    place: int
    """In the answer, from 0."""
    token_id: int
    logprob: float | None
    events: tuple[RewardLine, ...]
    """The reward events that reached it."""
    group: Group | None
    num_shared: int
    """So many tokens have this very number: it is not this token's own where it is above 1; 0 where
    no token is known to have it, as it is the mean over those of the call."""
    num_calls: int
    """So many calls of the attempt were given the very same reward events."""
    bin: Bin
    step: Step | None
    terms: tuple[Term, ...] = ()
    again: Recomputed | None = None
