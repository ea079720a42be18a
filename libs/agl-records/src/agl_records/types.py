"""Data of learning: what a call got and why (credit, advantage), and the ledger's accounts."""

from statistics import fmean
from typing import Annotated, Literal

from pydantic import Field

from agl.errors import AglError
from agl.types.records import Record

# fmt: off
ExclusionReason = Literal[
    "no_token_ids", "structured_output", "no_logprobs", "unrecognised_span", "model_error",
    "infrastructure", "malformed", "malformed_message", "over_length", "images",
    "agent_not_selected", "other_model", "judge", "perhaps_judge", "unused_choice",
    "unknown_choice", "empty_answer", "unfinished", "contradictory_answer", "token_count_mismatch",
    "broken_tool_call", "unknown_tool", "unknown_version", "truncated", "failed_attempt",
    "superseded_attempt", "late", "no_reward", "refused_reward", "zero_advantage",
    "below_threshold", "not_selected", "not_paired", "rejected", "unused_group",
    "not_trained_mode", "no_calls", "not_run", "reward_before_call", "superseded_reward",
    "unused_reward", "unordered_reward",
]
# fmt: on
"""Closed set of codes: why a call, a rollout or a reward trained nothing."""

EXCLUSION_REASONS: dict[ExclusionReason, str] = {
    "no_token_ids": "the server returned no token ids",
    "structured_output": "only a parsed object was recorded in the place of sampled tokens",
    "no_logprobs": "the server returned no log-probabilities, or not one for each token",
    "unrecognised_span": "a span looks like a model call, and no reader knows its form, or finds "
    "messages in it",
    "model_error": "the call failed",
    "infrastructure": "servers or the network failed it, or another call of its rollout",
    "malformed": "what was recorded cannot be, or the adapter failed on the spans of the rollout",
    "malformed_message": "a message of the call cannot be read: it has no role, say",
    "over_length": "prompt and answer are longer than the limit",
    "images": "its prompt has images, and the trainer takes token ids alone",
    "agent_not_selected": "another agent made it than those that are trained",
    "other_model": "another model answered it than the one that is trained",
    "judge": "it was made to find a reward: it is below the span of one",
    "perhaps_judge": "a reward was found meanwhile, and nobody says whether the call was for it",
    "unused_choice": "the agent went on with another of the answers to the same request",
    "unknown_choice": "the request had several answers, and nobody says which one was used",
    "empty_answer": "the model answered with no token at all",
    "unfinished": "its reason to finish is none that ends an answer, but abort or error, say",
    "contradictory_answer": "it ends for a tool call that it lacks, or says nothing of its tokens",
    "token_count_mismatch": "the server counted more or fewer tokens than it returned ids",
    "broken_tool_call": "it calls a tool with arguments that are no JSON object",
    "unknown_tool": "it calls a tool that its request did not offer",
    "unknown_version": "nobody says which weights sampled it, and max_staleness asks for that",
    "truncated": "the answer was cut off at the limit of tokens",
    "failed_attempt": "no attempt of the rollout succeeded",
    "superseded_attempt": "another attempt of the rollout is used",
    "late": "it came after its attempt or its rollout had ended",
    "no_reward": "no reward reached it",
    "refused_reward": "what was given as its reward is none: no number, or one out of range",
    "zero_advantage": "it did exactly as well as what it was compared with",
    "below_threshold": "its reward is below the one that is asked for",
    "not_selected": "the algorithm chose others to learn from, better ones for example",
    "not_paired": "no other rollout answered the same prompt otherwise and with another reward",
    "rejected": "the correction for sampling with other weights rejected it, or its weights were "
    "older than max_staleness allows",
    "unused_group": "the algorithm dropped its group, or the run ended first",
    "not_trained_mode": "its rollout was for validation or testing",
    "no_calls": "no model call of the rollout was recorded",
    "not_run": "the rollout ended before any attempt began",
    "reward_before_call": "the reward was given before the first call",
    "superseded_reward": "a later reward of the rollout counts in its place",
    "unused_reward": "the credit rule gave it to no call",
    "unordered_reward": "it is not known which call a reward of its attempt followed",
}
"""What each code means, in words that follow "because"."""
LATE = "the store took its span after that end"

OF_OTHERS: frozenset[ExclusionReason] = frozenset({"agent_not_selected", "other_model", "judge"})
"""Why a call is excluded that is none of the trained model's."""


class LedgerError(AglError, RuntimeError):
    """Model calls do not each stand in exactly one bin."""


class StepCredit(Record):
    """A second comparison of one call: with the same step of sibling rollouts."""

    group: str
    """Calls of sibling rollouts (rollouts of one task) with this key are compared."""
    reward: float
    """What is compared; the return from this call on, say."""
    weight: float = 1.0
    """How much the outcome adds to the advantage."""


class Credit(Record):
    """What a credit rule gave to one call, and why."""

    reward: float | None
    """None where no reward reaches the call."""
    rule: str = ""
    """Name of the rule; the row builder fills it in."""
    sources: list[str] = Field(default_factory=list[str])
    """Ids of the reward spans that it comes from."""
    because: str = ""
    """A sentence for a person, with the arithmetic."""
    group: str = ""
    """Calls of sibling rollouts with this key are compared with each other; "" is everything."""
    overlong: float | None = None
    """What a long answer cost; the reward is less this. None: nothing, or it is not recorded."""
    step: StepCredit | None = None
    reason: ExclusionReason = "no_reward"
    """Why there is no reward; only read where ``reward`` is None."""


class Advantage(Record):
    """How much better than its siblings a call did."""

    value: float
    group: str
    """What it was compared with."""
    because: str
    """The arithmetic, for a person."""
    estimator: str = ""
    """Its name, or ``module:function``; "" where it is not recorded."""
    is_mean: bool = False
    """Whether it is the mean over tokens of which each had its own, so that none is known to have
    it."""
    is_foreseen: bool = False
    """Whether what a model says of tokens has a part in it: a divergence, a critic's values."""


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


class LedgerPart(Record):
    """The account of one rollout in one step, as the store keeps it."""

    rollout_id: str
    step: Annotated[int, Field(ge=0, lt=10**12)] | None = None
    """Of the algorithm; None outside of steps."""
    mode: str | None = None
    """Of the rollout."""
    algorithm: str | None = None
    run: str | None = None
    """Id of the run; None outside of runs that have one."""
    generation: Annotated[int, Field(ge=0, lt=1 << 53)] = 0
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

    @property
    def mean_credit(self) -> float | None:
        """Of its items that have a credit; None where none has."""
        credits = [one.credit for one in (*self.trained, *self.excluded) if one.credit]
        given = [credit.reward for credit in credits if credit.reward is not None]
        return fmean(given) if given else None
