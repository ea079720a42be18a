"""A step that was trained again: what came of it then and now, and what differs first."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Compared:
    """One thing of a step, as it was and as it is now."""

    what: str
    """``weights after step 6``, ``rewards``, the name of a metric ..."""
    before: Any
    """JSON; None where the run did not note it."""
    now: Any
    same: bool | None
    """None where there is nothing to compare with."""
    where: str = ""
    """The first place at which they differ: a rollout, say."""


@dataclass
class Replay:
    """What ``Algorithm.replay`` gives."""

    step: int
    begun_at: int
    """The step of the checkpoint from which it was trained again; 0 is the run's beginning."""
    is_exact: bool
    """Whether each bit must be the same; else numbers may differ by ``tolerance``."""
    compared: list[Compared] = field(default_factory=list[Compared])
    """In the order in which one follows from the other."""
    notes: list[str] = field(default_factory=list[str])
    """What a reader must know of it."""

    @property
    def tolerance(self) -> float:
        """Relative, of metrics."""
        return 0.0 if self.is_exact else 1e-3

    @property
    def first_difference(self) -> Compared | None:
        """None where all is as it was."""
        return next((one for one in self.compared if one.same is False), None)
