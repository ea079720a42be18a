"""What every learning plugin shares: model calls and training rows.

Adapters make them out of spans; algorithms train on rows and account for each call. Plugins meet in
these types and not in each other.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, SkipValidation, computed_field

from agl.types.records import Record
from agl_records.dialects.chat import ENDS
from agl_records.types import Credit, ExclusionReason


class Choice(Record):
    """One of several answers to one request (``n`` above 1)."""

    model_config = ConfigDict(protected_namespaces=())

    response: dict[str, Any] | None = None
    """As an OpenAI assistant message."""
    token_ids: SkipValidation[list[int] | None] = None
    logprobs: SkipValidation[list[float] | None] = None
    finish_reason: str | None = None
    model_version: str | None = None
    """None where it is that of the call."""
    version_spans: list[tuple[str, int]] | None = None
    contradiction: str | None = None


class ModelCall(Record):
    """One request to a model within an attempt, and its answer."""

    model_config = ConfigDict(protected_namespaces=())

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
    """The one that answered, as its server calls it."""
    requested_model: str | None = None
    """The one that was asked for, as whoever asked calls it."""
    served_model: str | None = None
    """The same, where a gateway recorded it: exactly the name that it serves."""
    model_version: str | None = None
    """"3-4" where the weights changed from 3 to 4 while they sampled the answer."""
    version_spans: list[tuple[str, int]] | None = None
    """Where they changed: each version, with how many tokens it sampled."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    """So many tokens the prompt and all answers have, as the server counted them (``usage``)."""
    contradiction: str | None = None
    """How the answer contradicts itself, by the gateway's record."""
    unreadable: list[str] = Field(default_factory=list[str])
    """What of the record cannot be read and is left out, each with the reason."""
    is_constrained: bool = False
    """Whether the answer was held to a form: a schema, a grammar, a tool that must be called."""
    agent_name: str | None = None
    response_id: str | None = None
    finish_reason: str | None = None
    start_time: float | None = None
    end_time: float | None = None
    choices: list[Choice] = Field(default_factory=list[Choice])
    """All answers, where there are several. What the call itself has of an answer is then that of
    the one which was used, and nothing where that is not known."""
    choice: int | None = None
    """Which of ``choices`` was used, from 0."""
    unchosen: str = ""
    """Why that is not known, where there are several."""
    error: str | None = None
    error_kind: Literal["infrastructure", "request"] | None = None
    """Whose fault ``error`` was: of servers or the network (5xx, 429, a timeout, a lost
    connection), or of the request or its sender. None where nobody said."""

    @property
    def is_truncated(self) -> bool:
        """Whether the answer was cut off at the limit of tokens."""
        return self.finish_reason == "length"

    @property
    def answer_problem(self) -> tuple[ExclusionReason, str] | None:
        """Why it has no whole answer that was used: its fault, in words."""
        if self.unchosen:
            return "unknown_choice", self.unchosen
        if self.contradiction:
            return "contradictory_answer", self.contradiction
        if self.finish_reason in (None, *ENDS):
            return None
        reason = repr(self.finish_reason) if self.finish_reason else "missing"
        return "unfinished", f"its reason to finish is {reason}"

    @property
    def tool_problem(self) -> tuple[ExclusionReason, str] | None:
        """The first call of a tool in the answer that no agent can make: its fault, in words."""
        said = self.response or {}
        calls: Any = said.get("tool_calls") or []
        older = [{"function": one} for one in [said.get("function_call")] if one]
        offered = set(map(_tool_name, self.tools))
        for call in [*cast(list[Any], calls if isinstance(calls, list) else [calls]), *older]:
            name = _tool_name(call)
            if not name:
                return "broken_tool_call", "it calls a tool without a name"
            if not _has_arguments(call):
                return "broken_tool_call", f"the arguments of {name!r} are no JSON object"
            if offered and None not in offered and name not in offered:
                return "unknown_tool", f"it calls {name!r}, which was not offered"
        return None

    def part(self, number: int) -> "ModelCall":
        """The call with one of its choices as its only answer, under an id of its own."""
        choice = self.choices[number]
        return self.model_copy(
            update={
                "call_id": f"{self.call_id}#{number}",
                "response": choice.response,
                "response_token_ids": choice.token_ids,
                "response_logprobs": choice.logprobs,
                "finish_reason": choice.finish_reason,
                "model_version": choice.model_version or self.model_version,
                "version_spans": choice.version_spans,
                "contradiction": choice.contradiction,
                "choices": [],
                "choice": number,
                "unchosen": "",
            }
        )

    def parts(self) -> list["ModelCall"]:
        """What has a bin of its own in a ledger: each choice; the call where it has but one."""
        return [self.part(number) for number in range(len(self.choices))] or [self]


class TrainedModel(Record):
    """Which model an algorithm trains: rows are made of its calls only."""

    name: str
    """What agents and the gateway call it."""
    vocabulary_size: int | None = None
    """Token ids are below it; None where it is not known, and is not checked."""
    unknown_token_id: int | None = None
    """What its tokenizer writes for a word that it does not know; None where it knows all, or
    nobody said."""

    def made(self, call: ModelCall) -> bool:
        """Whether it answered this call; no where the call does not say who did."""
        if call.served_model is not None:
            return call.served_model == self.name
        name = call.requested_model or call.model
        # Some clients write the provider before the name.
        return name is not None and (name == self.name or name.endswith(f"/{self.name}"))


class RowBreak(Record):
    """Why a call did not continue a row of its agent: the one most of whose tokens it shares."""

    call_id: str = ""
    """The last call of that row."""

    position: int
    """First index at which the prompt differs from the tokens so far."""
    expected: list[int]
    """Up to 8 tokens of that row from ``position``."""
    got: list[int]
    """Up to 8 tokens of the prompt from ``position``."""


class TrainingRow(BaseModel):
    """One token sequence to train on, made of one call or of several that continue each other.

    ``token_ids``, ``logprobs`` and ``loss_mask`` have one length T.
    """

    rollout_id: str
    attempt_id: str
    agent_name: str | None = None
    model: str | None = None
    """Which of several that are trained in one run sampled it; None where there is one."""
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
    finish_reasons: list[str | None] = Field(default_factory=list[str | None])
    """Why the answer ended, one per call: ``length`` where the limit of tokens cut it off."""
    tool_problems: list[ExclusionReason | None] = Field(
        default_factory=list[ExclusionReason | None]
    )
    """``broken_tool_call`` or ``unknown_tool`` where the answer calls a tool so, one per call."""
    constrained: list[bool] = Field(default_factory=list[bool])
    """Whether the answer was held to a form, one per call: its log-probabilities are those among
    the tokens that the form allowed."""
    images: list[str] = Field(default_factory=list[str])
    """Addresses of the images in its prompts, in order; what the token ids alone do not say."""
    row_break: RowBreak | None = None
    """Why this row began, when an earlier row of the same agent begins with the same tokens."""

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

    def note(self, call: ModelCall, credit: Credit) -> None:
        """Add what is said of each call (``PER_CALL``) of one more."""
        self.call_ids.append(call.call_id)
        self.credits.append(credit)
        self.model_versions.append(call.model_version)
        self.finish_reasons.append(call.finish_reason)
        self.tool_problems.append((call.tool_problem or (None,))[0])
        self.constrained.append(call.is_constrained)

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
            update={"logprobs": logprobs, **items_of_calls(self, kept, ("call_ranges", *PER_CALL))}
        )


PER_CALL = (
    *("call_ids", "credits", "model_versions", "finish_reasons", "tool_problems"),
    "constrained",
)
"""Fields of a row that have one item per call, besides the ranges of tokens."""


def items_of_calls(row: TrainingRow, kept: list[int], names: tuple[str, ...]) -> dict[str, Any]:
    """Of each of these fields of a row, the items of some of its calls."""
    # Rows made by hand may leave out what they do not know.
    return {
        name: [items[number] for number in kept]
        for name in names
        if (items := cast(list[Any], getattr(row, name)))
    }


def _tool_name(tool: Any) -> str | None:
    """The name in a definition or a call of a tool, of a function or a custom one."""
    inner: Any = tool
    if isinstance(tool, Mapping):
        known = cast(Mapping[str, Any], tool)
        inner = known.get("function") or known.get("custom") or known
    name = cast(Any, inner).get("name") if isinstance(inner, Mapping) else None
    return name if isinstance(name, str) else None


def _has_arguments(tool_call: Any) -> bool:
    """Whether the arguments are a JSON object; a custom tool takes any text."""
    try:
        if tool_call.get("custom"):
            return True
        return isinstance(json.loads(tool_call["function"]["arguments"] or "{}"), dict)
    except (ValueError, TypeError, KeyError, RecursionError):  # that of many brackets
        return False
