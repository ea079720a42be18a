"""What goes into an estimator beside rewards, and what comes out of it, by row."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from agl_records.training_data import TrainingRow
from agl_records.types import Advantage


@dataclass(frozen=True)
class Foreseen:
    """What a model says of the sampled tokens before their advantages are made.

    Lists have one list per row, with one number per sampled token.
    """

    penalties: list[list[float]] | None = None
    """Added to the rewards, each at its token."""
    values: list[list[float]] | None = None
    """What a critic expects before each token."""
    gamma: float = 1.0
    """What a reward loses per token."""
    lam: float = 1.0
    """Of generalised advantage estimation."""


Foresee = Callable[[list[TrainingRow]], Foreseen | None]
"""Looks at all rows that are weighed."""


@dataclass(frozen=True)
class Estimated:
    """What one row gets; a list of lists has one list per call, with one number per token."""

    advantages: list[Advantage]
    """One per call: the mean over its tokens."""
    tokens: list[list[float]] = field(default_factory=list[list[float]])
    """Advantages, where those of a call's tokens differ; else empty."""
    returns: list[list[float]] = field(default_factory=list[list[float]])
    values: list[list[float]] = field(default_factory=list[list[float]])


def mean_of_tokens(number: int | str) -> str:
    """How an advantage says that it is the mean of so many tokens, each of which had its own."""
    return f", the mean of {number} tokens"


def is_mean_of_tokens(because: str) -> bool:
    """Whether an advantage says so of itself: then no token of its call is known to have it."""
    return _MEAN.search(because) is not None


_MEAN = re.compile(mean_of_tokens(r"(\d+|its)"))
