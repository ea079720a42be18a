"""From the spans of a rollout to training rows, with an account of every call and reward."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agl.adapter import CreditRule, TraceAdapter
from agl.errors import AdapterError, ConfigError
from agl.types import (
    Attempt,
    Credit,
    Exclusion,
    ExclusionReason,
    Ledger,
    ModelCall,
    RowBreak,
    Span,
    TrainingRow,
)
from agl_adapters.air import AutoRewards
from agl_adapters.attempts import unused_attempts
from agl_adapters.calls import Recorded, by_attempt, recorded_and_unrecognised
from agl_adapters.credit.rewards import rewards_of
from agl_adapters.matching import compile_match, selects
from agl_adapters.sources.fields import is_structured
from agl_adapters.tree import ordered

BREAK_TOKENS = 8
"""How many tokens of each side a ``RowBreak`` shows."""


@dataclass
class RowSet:
    """Training rows, and what became of the calls that are in none of them."""

    rows: list[TrainingRow] = field(default_factory=list[TrainingRow])
    ledger: Ledger = field(default_factory=Ledger)
    """Knows every call, rollout and reward. Calls outside of ``rows`` are excluded with a reason;
    those in ``rows`` are open until ``ledger.train(row)`` or ``ledger.exclude_row(row, reason)`` is
    called for each row, after which ``ledger.check()`` passes."""

    def __len__(self) -> int:
        return len(self.rows)


class TraceToRows(TraceAdapter[RowSet]):
    """Makes rows of token ids, loss mask, log-probabilities and credit per call.

    Consecutive calls of one agent share a row as long as each prompt begins with the exact token
    ids of the prompt and the answer before it; a new row says in ``row_break`` where its prompt
    went another way. Calls of different attempts are never mixed: one attempt of a rollout is used.

    Args:
        agent_match: Regular expression, searched in agents' names; None takes every call. A call
            whose agent is unknown matches nothing.
        credit: The credit rule: its name, a dict of ``type`` and options, or a rule.
        max_length: Calls whose prompt and answer are longer together, in tokens, are excluded.
        air: Automatic intermediate rewards: a dict of the options of ``AutoRewards``
            (``on_tool_success``, ``on_tool_failure``, ``on_code_execution``, ``custom``,
            ``enabled``), or an ``AutoRewards``; None makes none.

    Raises:
        ConfigError: A wrong regular expression or length, or ``air`` with a credit rule that only
            looks at final rewards.
        PluginError: There is no such credit rule.
    """

    def __init__(
        self,
        agent_match: str | None = None,
        credit: str | dict[str, Any] | CreditRule = "final",
        max_length: int | None = None,
        air: dict[str, Any] | AutoRewards | None = None,
    ) -> None:
        if max_length is not None and max_length < 2:
            raise ConfigError(f"TraceToRows max_length={max_length}: expected 2 or more")
        self.agent_match = (
            None if agent_match is None else compile_match(agent_match, "TraceToRows agent_match")
        )
        self.max_length = max_length
        self.credit = _credit_rule(credit)
        self.credit_name = _name_of_rule(credit)
        self.air = _air(air)
        if self.air is not None and self.air.enabled and not self.credit.uses_intermediate:
            raise ConfigError(
                "TraceToRows: air makes intermediate rewards, which the credit rule "
                f"{self.credit_name!r} does not use. Choose credit 'per_call', 'discounted' or "
                "'stepwise', or leave air out"
            )

    def adapt(self, source: Sequence[Span], /, attempts: Sequence[Attempt] | None = None) -> RowSet:
        """Rows of one rollout, or of several.

        Args:
            source: Spans in any order; empty gives no rows.
            attempts: The rollouts' attempts: then the last that succeeded is used, and a rollout
                without spans is accounted for too. Otherwise it is the attempt that began last.

        Raises:
            AdapterError: The credit rule did not give one credit per call.
        """
        result = RowSet()
        groups = by_attempt(source)
        for attempt in attempts or ():
            groups.setdefault((attempt.rollout_id, attempt.attempt_id), [])
        unused = unused_attempts(groups, attempts)
        has_calls: dict[str, bool] = {}
        for key, spans in groups.items():
            result.ledger.add_rollout(key[0])
            records = recorded_and_unrecognised(spans)
            has_calls[key[0]] = has_calls.get(key[0], False) or bool(records)
            for record in records:
                result.ledger.add_call(record.call)
            if key in unused:
                _leave_out(records, spans, *unused[key], result.ledger)
            else:
                self._adapt_attempt(records, ordered(spans), result)
        used = {key[0] for key in groups.keys() - unused.keys()}
        for rollout_id in (rollout_id for rollout_id, some in has_calls.items() if not some):
            reason, detail = (
                ("no_calls", "no model call of its attempt was recorded")
                if rollout_id in used
                else next(why for key, why in unused.items() if key[0] == rollout_id)
            )
            result.ledger.exclude(
                Exclusion(kind="rollout", rollout_id=rollout_id, reason=reason, detail=detail)
            )
        return result

    def _adapt_attempt(
        self, records: Sequence[Recorded], spans: Sequence[Span], result: RowSet
    ) -> None:
        calls = [record.call for record in records]
        if self.air is not None:
            spans = ordered([*spans, *self.air.rewards(spans)])
        credits = self.credit.assign(calls, spans)
        if len(credits) != len(calls):
            raise AdapterError(
                f"credit rule {self.credit_name!r} gave {len(credits)} credits for {len(calls)} "
                f"calls of rollout {spans[0].rollout_id!r}"
            )
        _account_for_rewards(calls, credits, spans, self.credit_name, result.ledger)
        # A rule may give one and the same credit to many calls.
        named = {id(c): c.model_copy(update={"rule": self.credit_name}) for c in credits}
        latest: dict[str | None, TrainingRow] = {}
        for record, given in zip(records, credits, strict=True):
            call, credit = record.call, named[id(given)]
            problem = self._problem(record)
            if problem is None and credit.reward is None:
                problem = (credit.reason, credit.because or "no reward reached this call")
            if problem is not None:
                result.ledger.exclude(_exclusion(call, *problem, credit))
                continue
            row = self._take(call, credit, latest.get(call.agent_name))
            if row is not None:
                result.rows.append(row)
                latest[call.agent_name] = row

    def _take(
        self, call: ModelCall, credit: Credit, previous: TrainingRow | None
    ) -> TrainingRow | None:
        """A row that begins with the call, or None: ``previous`` has become longer by it."""
        row_break = previous and find_break(previous.token_ids, _prompt(call))
        if previous is not None and row_break is None:
            extend(previous, call, credit)
            return None
        return new_row(call, credit, row_break)

    def _problem(self, record: Recorded) -> tuple[ExclusionReason, str] | None:
        call = record.call
        if not selects(self.agent_match, call.agent_name):
            return "agent_not_selected", f"its agent is {call.agent_name!r}"
        if record.malformed is not None:
            return record.code, record.malformed
        if call.error is not None:
            return "model_error", call.error
        prompt, response = call.prompt_token_ids, call.response_token_ids
        if not prompt or not response:
            return _no_token_ids(record)
        logprobs = call.response_logprobs
        if not logprobs:
            return "no_logprobs", "the answer has no log-probabilities"
        if len(logprobs) != len(response):
            return (
                "malformed",
                f"{len(response)} answer tokens with {len(logprobs)} log-probabilities",
            )
        # One that is not finite makes the sum so.
        if not math.isfinite(sum(logprobs)):
            return "malformed", "a log-probability is not finite"
        length = len(prompt) + len(response)
        if self.max_length is not None and length > self.max_length:
            return "over_length", f"{length} tokens, max_length is {self.max_length}"
        return None


def new_row(call: ModelCall, credit: Credit, row_break: RowBreak | None) -> TrainingRow:
    """A row of one call."""
    prompt, sampled = _prompt(call), call.response_token_ids or []
    # Without validation, which looks at every token: they were checked when the call was read.
    return TrainingRow.model_construct(
        rollout_id=call.rollout_id,
        attempt_id=call.attempt_id,
        agent_name=call.agent_name,
        token_ids=prompt + sampled,
        logprobs=[0.0] * len(prompt) + (call.response_logprobs or []),
        call_ids=[call.call_id],
        call_ranges=[(len(prompt), len(prompt) + len(sampled))],
        credits=[credit],
        model_versions=[call.model_version],
        row_break=row_break,
    )


def extend(row: TrainingRow, call: ModelCall, credit: Credit) -> None:
    """Append what a call adds to a row that its prompt continues."""
    given = _prompt(call)[len(row.token_ids) :]
    added = new_row(call.model_copy(update={"prompt_token_ids": given}), credit, None)
    offset = len(row.token_ids)
    row.token_ids += added.token_ids
    row.logprobs += added.logprobs
    row.call_ids += added.call_ids
    row.call_ranges += [(start + offset, end + offset) for start, end in added.call_ranges]
    row.credits += added.credits
    row.model_versions += added.model_versions


def find_break(tokens: Sequence[int], prompt: Sequence[int]) -> RowBreak | None:
    """Where ``prompt`` stops beginning with all of ``tokens``; None when it does to the end."""
    if len(prompt) >= len(tokens) and prompt[: len(tokens)] == tokens:
        return None
    pairs = zip(tokens, prompt, strict=False)
    shorter = min(len(tokens), len(prompt))
    position = next((i for i, (one, other) in enumerate(pairs) if one != other), shorter)
    end = position + BREAK_TOKENS
    return RowBreak(
        position=position, expected=list(tokens[position:end]), got=list(prompt[position:end])
    )


def _account_for_rewards(
    calls: Sequence[ModelCall],
    credits: Sequence[Credit],
    spans: Sequence[Span],
    rule: str,
    ledger: Ledger,
) -> None:
    used = {span_id for credit in credits for span_id in credit.sources}
    begin = min((call.start_time for call in calls if call.start_time is not None), default=None)
    rewards = [reward.span for reward in rewards_of(spans)]
    last_used = max((n for n, span in enumerate(rewards) if span.span_id in used), default=-1)
    for number, span in enumerate(rewards):
        ledger.add_reward(span.rollout_id, span.attempt_id, span.span_id)
        if span.span_id in used:
            ledger.use_reward(span.rollout_id, span.attempt_id, span.span_id)
            continue
        if not calls:
            why = ("no_calls", "the attempt has no recorded call that it could reach")
        elif begin is not None and span.start_time is not None and span.start_time < begin:
            seconds = begin - span.start_time
            why = ("reward_before_call", f"it came {seconds:.3f} s before the first call began")
        elif number < last_used:
            why = ("superseded_reward", f"the rule {rule!r} took a later reward of the attempt")
        else:
            why = ("unused_reward", f"the rule {rule!r} gave it to no call")
        ledger.exclude(_exclusion_of_reward(span, *why))


def _leave_out(
    records: Sequence[Recorded],
    spans: Sequence[Span],
    reason: ExclusionReason,
    detail: str,
    ledger: Ledger,
) -> None:
    for record in records:
        error = record.call.error
        why = f"{detail}; the call itself failed: {error}" if error else detail
        ledger.exclude(_exclusion(record.call, reason, why))
    for reward in rewards_of(spans):
        span = reward.span
        ledger.add_reward(span.rollout_id, span.attempt_id, span.span_id)
        ledger.exclude(_exclusion_of_reward(span, reason, detail))


def _no_token_ids(record: Recorded) -> tuple[ExclusionReason, str]:
    call, span = record.call, record.node.span
    if span is not None and is_structured(span):
        return (
            "structured_output",
            f"span {span.name!r} has the parsed object and no token ids; send the call through "
            "the gateway",
        )
    missing = "prompt" if not call.prompt_token_ids else "answer"
    return "no_token_ids", f"the {missing} has no token ids"


def _credit_rule(credit: str | Mapping[str, Any] | CreditRule) -> CreditRule:
    from agl.config import build_component

    return build_component(credit, group="agl.credits", expected_type=CreditRule, default="final")


def _name_of_rule(credit: str | Mapping[str, Any] | CreditRule) -> str:
    if isinstance(credit, str):
        return credit
    if isinstance(credit, Mapping):
        return str(credit.get("type", "final"))
    return type(credit).__name__


def _air(air: dict[str, Any] | AutoRewards | None) -> AutoRewards | None:
    if air is None or isinstance(air, AutoRewards):
        return air
    from agl.schema import validate

    return AutoRewards(**validate(AutoRewards, air, "TraceToRows air"))


def _prompt(call: ModelCall) -> list[int]:
    return call.prompt_token_ids or []


def _exclusion(
    call: ModelCall, reason: ExclusionReason, detail: str, credit: Credit | None = None
) -> Exclusion:
    return Exclusion(
        call_id=call.call_id,
        rollout_id=call.rollout_id,
        attempt_id=call.attempt_id,
        reason=reason,
        detail=detail,
        credit=credit,
    )


def _exclusion_of_reward(span: Span, reason: ExclusionReason, detail: str) -> Exclusion:
    return Exclusion(
        kind="reward",
        call_id=span.span_id,
        rollout_id=span.rollout_id,
        attempt_id=span.attempt_id,
        reason=reason,
        detail=detail,
    )
