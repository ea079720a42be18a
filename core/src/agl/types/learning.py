"""What every learning plugin shares: model calls, training rows, exclusions and the ledger.

Adapters make them out of spans; algorithms train on rows and account for each call. Plugins meet in
these types and not in each other.
"""

from collections import Counter
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from agl.errors import LedgerError


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
    prompt_token_ids: list[int] | None = None
    response_token_ids: list[int] | None = None
    response_logprobs: list[float] | None = None
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

    ``token_ids``, ``loss_mask`` and ``logprobs`` have one length T.
    """

    rollout_id: str
    attempt_id: str
    agent_name: str | None = None
    token_ids: list[int]
    loss_mask: list[int]
    """1 where the model sampled the token, 0 where it was given."""
    logprobs: list[float]
    """Log-probability at sampling time where ``loss_mask`` is 1, else 0.0."""
    reward: float | None = None
    """What the credit rule gave to this row."""
    call_ids: list[str]
    """The calls in it, in order."""
    model_versions: list[str | None] = Field(default_factory=list[str | None])
    """One per call."""
    row_break: RowBreak | None = None
    """Why this row began, when an earlier row of the same agent exists."""


ExclusionReason = Literal[
    "no_token_ids",
    "no_logprobs",
    "model_error",
    "malformed",
    "over_length",
    "agent_not_selected",
    "failed_attempt",
    "superseded_attempt",
    "no_reward",
    "zero_advantage",
    "not_trained_mode",
]
"""Closed set of codes: why a model call trained nothing."""


class Exclusion(BaseModel):
    """A model call that trained nothing, and why."""

    model_config = ConfigDict(frozen=True)

    call_id: str
    rollout_id: str
    attempt_id: str
    reason: ExclusionReason
    detail: str = ""
    """A sentence for a person."""


CallKey = tuple[str, str, str]
"""(rollout_id, attempt_id, call_id)."""


class Ledger:
    """Every model call in exactly one bin: trained, or excluded with a reason.

    A call is announced with ``add_call`` and then put in a bin by ``train`` or ``exclude``;
    ``check`` refuses a call in no bin, a call in two, and a binned call that was never announced.
    """

    def __init__(self) -> None:
        self.calls: set[CallKey] = set()
        self.trained: Counter[CallKey] = Counter()
        self.exclusions: list[Exclusion] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and vars(self) == vars(other)

    def add_call(self, call: ModelCall) -> None:
        """Announce a call; announcing it again changes nothing."""
        self.calls.add((call.rollout_id, call.attempt_id, call.call_id))

    def train(self, row: TrainingRow) -> None:
        """All calls of ``row`` were trained."""
        self.trained.update((row.rollout_id, row.attempt_id, call_id) for call_id in row.call_ids)

    def exclude(self, exclusion: Exclusion) -> None:
        """One call was not trained."""
        self.exclusions.append(exclusion)

    def exclude_row(self, row: TrainingRow, reason: ExclusionReason, detail: str = "") -> None:
        """No call of ``row`` was trained."""
        for call_id in row.call_ids:
            self.exclude(
                Exclusion(
                    call_id=call_id,
                    rollout_id=row.rollout_id,
                    attempt_id=row.attempt_id,
                    reason=reason,
                    detail=detail,
                )
            )

    def merge(self, other: "Ledger") -> None:
        """Add what another ledger holds."""
        self.calls |= other.calls
        self.trained.update(other.trained)
        self.exclusions.extend(other.exclusions)

    def reasons(self) -> dict[str, int]:
        """Excluded calls per reason."""
        return dict(Counter(exclusion.reason for exclusion in self.exclusions))

    def summary(self) -> dict[str, Any]:
        """``{"calls": n, "trained": n, "excluded": {reason: n}}``."""
        return {"calls": len(self.calls), "trained": len(self.trained), "excluded": self.reasons()}

    def check(self) -> None:
        """Refuse an imbalance.

        Raises:
            LedgerError: A call is in no bin or in several, or was never announced. Both sides are
            in the message.
        """
        bins: Counter[CallKey] = Counter(self.trained)
        bins.update((e.rollout_id, e.attempt_id, e.call_id) for e in self.exclusions)
        missing = sorted(self.calls - bins.keys())
        unknown = sorted(bins.keys() - self.calls)
        double = sorted(key for key, count in bins.items() if count > 1)
        if missing or unknown or double:
            raise LedgerError(
                f"ledger does not balance: {len(self.calls)} calls, {len(self.trained)} trained, "
                f"{len(self.exclusions)} excluded {self.reasons()}; "
                f"in no bin: {missing[:5]}, in several: {double[:5]}, "
                f"never announced: {unknown[:5]}"
            )
