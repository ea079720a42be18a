"""What a store keeps of the ledger: every model call, rollout and reward of a step, and its bin."""

from typing import Annotated, Literal

from pydantic import Field

from agl.types.learning import Advantage, Credit
from agl.types.reasons import ExclusionReason
from agl.types.records import Record

ItemKind = Literal["call", "rollout", "reward"]
CallKey = tuple[str, str, str]
"""(rollout_id, attempt_id, id of the span); the last two are "" for a whole rollout."""


class LedgerItem(Record):
    """Something that a ledger has in a bin."""

    kind: ItemKind = "call"
    rollout_id: str
    attempt_id: str = ""
    """"" for a rollout."""
    call_id: str = ""
    """Id of the call's span, or of the reward's; "" for a rollout."""
    truncated: bool = False
    """Of a call that is announced: whether its answer was cut off at the limit of tokens."""

    @property
    def key(self) -> CallKey:
        """What identifies it among the items of its kind."""
        return (self.rollout_id, self.attempt_id, self.call_id)


class Exclusion(LedgerItem):
    """A call, rollout or reward that trained nothing, and why."""

    reason: ExclusionReason
    detail: str = ""
    """A sentence for a person."""
    credit: Credit | None = None
    """What the call got all the same."""
    advantage: Advantage | None = None


class Trained(LedgerItem):
    """A call that was trained, or a reward that reached a call."""

    row: int | None = None
    """In which row of its rollout, from 0."""
    model_version: str | None = None
    """Of the weights that sampled it."""
    credit: Credit | None = None
    advantage: Advantage | None = None


_Number = Annotated[int, Field(ge=-(1 << 53), le=1 << 53)]
"""Databases have no larger ones."""


class LedgerPart(Record):
    """The account of one rollout in one step, as the store keeps it."""

    rollout_id: str
    step: _Number | None = None
    """Of the algorithm; None outside of steps."""
    mode: str | None = None
    """Of the rollout."""
    algorithm: str | None = None
    run: str | None = None
    """Id of the run; None outside of runs that have one."""
    generation: _Number = 0
    """Which start of the run wrote it, from 1; 0 where starts are not counted."""
    version: str | None = None
    """Of the weights that came out of the step."""
    lost: bool = False
    """Whether the run went back behind it: it was killed and went on from an earlier checkpoint.
    What is lost counts in no sum."""
    problem: str = ""
    """Why its items cannot be read; they are missing then."""
    items: list[LedgerItem] = Field(default_factory=list[LedgerItem])
    """Everything that was announced."""
    trained: list[Trained] = Field(default_factory=list[Trained])
    excluded: list[Exclusion] = Field(default_factory=list[Exclusion])
