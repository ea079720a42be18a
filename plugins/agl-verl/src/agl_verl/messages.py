"""What the algorithm's process and verl's process tell each other; plain data, nothing heavy.

verl's process (its task runner) asks for groups: one task, run several times. The algorithm's
process has store, gateway and adapter, runs the group, and answers with rows of tokens.
"""

from dataclasses import dataclass, field

from agl_verl.rows import RowNotes


@dataclass(frozen=True)
class Backend:
    """Where verl's rollout servers answer: said once, before the first group is asked for."""

    url: str
    """Base address of chat completions, ending in ``/v1``."""
    model: str
    """What the backend calls the model."""
    api_key: str | None = None
    """What the gateway must send; None on loopback."""
    vocabulary_size: int | None = None
    """Of the model; None where its configuration does not say."""
    step: int = 0
    """Of the checkpoint that verl goes on from; 0 where it begins."""


@dataclass(frozen=True)
class GroupRequest:
    """Run one task several times."""

    uid: str
    """verl's name of the group."""
    index: int
    """Of the task in its dataset."""
    copies: int
    validate: bool
    step: int
    """verl's training step at which the group was asked for."""


@dataclass(frozen=True)
class Row:
    """One sequence for verl: a prompt, and a response of sampled and given tokens."""

    session: int
    """Which copy of the task, from 0."""
    number: int
    """Which row of that rollout, from 0."""
    rollout_id: str
    prompt_ids: list[int]
    response_ids: list[int]
    mask: list[int]
    """1 where the model sampled; 0 for what tools and users said."""
    logprobs: list[float]
    """At sampling time; 0.0 where the mask is 0."""
    notes: RowNotes
    """Its calls, and the dimensions of the reward, where they were read."""
    reward: float
    """Of the rollout."""
    versions: tuple[int, int]
    """Oldest and newest weights that sampled in it; verl's step numbers."""


@dataclass(frozen=True)
class GroupAnswer:
    """What came of a group."""

    rows: list[Row]
    dropped: str = ""
    """Why the group has no rows that verl may train, in words; empty when it has."""


Advantages = dict[str, list[float | None]]
"""Key of the row, as ``row_key`` makes it, to one advantage per call of it: the mean over its
tokens. None for a call of which rollout correction rejected every token."""


@dataclass(frozen=True)
class Update:
    """Rows are about to be trained; a step of ``separate_async`` has several updates."""

    step: int
    advantages: Advantages


@dataclass(frozen=True)
class Settle:
    """A training step is over: what was trained of which row."""

    step: int
    advantages: Advantages
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """verl's, of the step."""
    is_last: bool = False
    """Whether verl has no step after it."""


@dataclass(frozen=True)
class Validated:
    """A validation is over."""

    step: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class Settled:
    """The account of a step, or of a validation, is written."""

    metrics: dict[str, float]
    """Of agl."""
    stops: bool = False
    """Whether the run ends here, with a checkpoint, as it was asked to."""


def row_key(uid: str, session: int, number: int) -> str:
    """The key that verl has for a row; it splits keys at underscores, and so uids have none."""
    return f"{uid}_{session}_{number}"


Message = Backend | GroupRequest | Update | Settle | Validated
Answer = GroupAnswer | Settled | None
