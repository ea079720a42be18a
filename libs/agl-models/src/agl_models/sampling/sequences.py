"""A request to sample, its completion, and the sampler's interface."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol


class Constraint(Protocol):
    """Which tokens an answer may go on with."""

    def allowed(self) -> bytes:
        """A bit per token of the vocabulary, the lowest first: whether it may come next."""
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
    on_token: Callable[[int, float], None] | None = None
    """Called with each token id and its log-probability, from the generating thread."""
    constraint: Callable[[], Constraint] | None = None
    """Makes what the answer is held to."""


@dataclass
class Completion:
    """What was sampled."""

    token_ids: list[int] = field(default_factory=list[int])
    """End token included."""
    logprobs: list[float] = field(default_factory=list[float])
    text: str = ""
    """The text without special tokens, cut before a stop text."""
    finish_reason: Literal["stop", "length"] = "length"
    stop_reason: str | None = None
    """The stop text that ended it, if one did."""


class Sampled(Protocol):
    """A sequence that waits or is sampled, or was."""

    @property
    def completion(self) -> Completion:
        """What it has by now."""
        ...

    @property
    def error(self) -> Exception | None:
        """What went wrong with it alone, once it is over."""
        ...


class Sampler(Protocol):
    """Samples many sequences at once; each step gives every one of them a token."""

    @property
    def tokenizer(self) -> Any:
        """A tokenizer of ``transformers``, with a chat template."""
        ...

    @property
    def vocabulary_size(self) -> int:
        """How many logits the model has."""
        ...

    @property
    def end_token_ids(self) -> frozenset[int]:
        """What ends an answer."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether nothing has joined that is not over."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of tokens, without special ones."""
        ...

    def add(self, request: SamplingRequest) -> Sampled:
        """Have a sequence join at the next step that has room for it."""
        ...

    def drop(self, running: Any) -> None:
        """Sample no more of a sequence: nobody wants it."""

    def give_up(self) -> None:
        """Sample no more of anything: a step has failed."""

    def step(self, may_join: bool = True) -> Sequence[Sampled]:
        """Give every sequence a token; returns what is over now.

        Args:
            may_join: Whether those that wait may.
        """
        ...
