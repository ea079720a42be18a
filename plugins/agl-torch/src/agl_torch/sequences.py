"""What is to be sampled, and what was."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from agl_torch.slots import Slot

if TYPE_CHECKING:
    import torch
    from torch import Tensor

TokenSink = Callable[[int, float], None]
"""Called with each token id and its log-probability, from the generating thread."""


class Constraint(Protocol):
    """Which tokens an answer may go on with."""

    def allowed(self) -> "Tensor":
        """Whether each token of the vocabulary may come next; as long as the model's logits."""
        ...

    def accept(self, token_id: int) -> None:
        """This one came."""
        ...


@dataclass(frozen=True)
class SamplingRequest:
    """One sequence to sample."""

    prompt_token_ids: Sequence[int]
    max_tokens: int
    temperature: float = 1.0
    """0 takes the most probable token."""
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    """The answer ends before the first of these texts."""
    seed: str | int | None = None
    """Same seed, same draw, whatever else is in the batch."""
    on_token: TokenSink | None = None
    constraint: Callable[[], Constraint] | None = None
    """Makes what the answer is held to."""


@dataclass
class Completion:
    """What was sampled."""

    token_ids: list[int] = field(default_factory=list[int])
    """End token included."""
    logprobs: list[float] = field(default_factory=list[float])
    text: str = ""
    """Without special tokens, and cut before a stop text."""
    finish_reason: Literal["stop", "length"] = "length"
    stop_reason: str | None = None
    """The stop text that ended it, if one did."""


@dataclass(eq=False)
class Running:
    """A sequence that waits or is sampled, or was."""

    request: SamplingRequest
    random: "torch.Generator | None"
    """Of its draws; None where nothing is left to chance."""
    constraint: Constraint | None
    completion: Completion = field(default_factory=Completion)
    is_over: bool = False
    slot: Slot = field(default_factory=Slot)
    """Once it has joined. The newest of its tokens has not been read by the model."""


def first_stop(text: str, stop: Sequence[str]) -> tuple[str, str] | None:
    """``text`` up to the earliest of the stop texts, and that one; None when there is none."""
    hits = [(text.index(candidate), candidate) for candidate in stop if candidate in text]
    if not hits:
        return None
    position, candidate = min(hits)
    return text[:position], candidate
