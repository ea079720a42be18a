"""What every learning plugin shares: model calls, credit, training rows, advantages.

Adapters make them out of spans; algorithms train on rows and account for each call. Plugins meet in
these types and not in each other.
"""

from collections.abc import Collection
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SkipValidation, computed_field

from agl.types.credit import Credit


class Triplet(BaseModel):
    """One turn as 0.3 shows it: prompt, response, and the reward that the turn got."""

    prompt: Any
    response: Any
    reward: float | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class ModelCall(BaseModel):
    """One request to a model within an attempt, and its answer."""

    model_config = ConfigDict(frozen=True, protected_namespaces=())

    call_id: str
    """Id of the span that recorded it; unique within the attempt."""
    rollout_id: str
    attempt_id: str
    sequence_id: int
    """Position of that span within the attempt."""
    messages: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    """The request, as OpenAI chat messages."""
    tools: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    response: dict[str, Any] | None = None
    """The answer, as an OpenAI assistant message; None when there was none."""
    # Whoever reads a span has looked at each token; pydantic would do so again, and copy them.
    prompt_token_ids: SkipValidation[list[int] | None] = None
    response_token_ids: SkipValidation[list[int] | None] = None
    response_logprobs: SkipValidation[list[float] | None] = None
    """One natural log-probability per response token."""
    model: str | None = None
    model_version: str | None = None
    agent_name: str | None = None
    response_id: str | None = None
    finish_reason: str | None = None
    start_time: float | None = None
    end_time: float | None = None
    error: str | None = None


class RowBreak(BaseModel):
    """Why a call did not continue the row before it."""

    model_config = ConfigDict(frozen=True)

    position: int
    """First index at which the prompt differs from the tokens so far."""
    expected: list[int]
    """Up to 8 tokens of the row from ``position``."""
    got: list[int]
    """Up to 8 tokens of the prompt from ``position``."""


class TrainingRow(BaseModel):
    """One token sequence to train on, made of one call or of several that continue each other.

    ``token_ids``, ``logprobs`` and ``loss_mask`` have one length T.
    """

    rollout_id: str
    attempt_id: str
    agent_name: str | None = None
    token_ids: list[int]
    logprobs: list[float]
    """Log-probability at sampling time where ``loss_mask`` is 1, else 0.0."""
    call_ids: list[str]
    """The calls in it, in order."""
    call_ranges: list[tuple[int, int]]
    """Per call ``(start, end)``: the tokens that it sampled are ``token_ids[start:end]``."""
    credits: list[Credit]
    """One per call."""
    model_versions: list[str | None] = Field(default_factory=list[str | None])
    """One per call."""
    row_break: RowBreak | None = None
    """Why this row began, when an earlier row of the same agent exists."""

    @computed_field
    @property
    def loss_mask(self) -> list[int]:
        """1 where the model sampled the token, 0 where it was given; follows ``call_ranges``."""
        mask = [0] * len(self.token_ids)
        for start, end in self.call_ranges:
            mask[start:end] = [1] * (end - start)
        return mask

    @property
    def num_sampled(self) -> int:
        """How many tokens the model sampled."""
        return sum(end - start for start, end in self.call_ranges)

    @property
    def reward(self) -> float | None:
        """Mean over its calls of what they got; None where none got anything."""
        rewards = [credit.reward for credit in self.credits if credit.reward is not None]
        return sum(rewards) / len(rewards) if rewards else None

    def only(self, numbers: Collection[int]) -> "TrainingRow":
        """The row with these of its calls (from 0); what the others sampled counts as given."""
        if len(numbers) == len(self.call_ids):
            return self
        logprobs = self.logprobs.copy()
        for number, (start, end) in enumerate(self.call_ranges):
            if number not in numbers:
                logprobs[start:end] = [0.0] * (end - start)
        kept = sorted(numbers)
        return self.model_copy(
            update={
                "logprobs": logprobs,
                "call_ids": [self.call_ids[number] for number in kept],
                "call_ranges": [self.call_ranges[number] for number in kept],
                "credits": [self.credits[number] for number in kept],
                "model_versions": [self.model_versions[number] for number in kept],
            }
        )
