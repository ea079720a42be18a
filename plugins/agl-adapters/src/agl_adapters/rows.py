"""From the spans of a rollout to training rows, with an account of every model call."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agl.adapter import CreditRule, TraceAdapter
from agl.errors import AdapterError, ConfigError
from agl.types import (
    Attempt,
    Exclusion,
    ExclusionReason,
    Ledger,
    ModelCall,
    RowBreak,
    Span,
    TrainingRow,
)
from agl_adapters.calls import Recorded, by_attempt, recorded_calls
from agl_adapters.matching import compile_match, selects

BREAK_TOKENS = 8
"""How many tokens of each side a ``RowBreak`` shows."""
FAILED = ("failed", "timeout", "unresponsive")


@dataclass
class RowSet:
    """Training rows, and what became of the calls that are in none of them."""

    rows: list[TrainingRow] = field(default_factory=list[TrainingRow])
    ledger: Ledger = field(default_factory=Ledger)
    """Knows every call. Those outside of ``rows`` are excluded with a reason; those in ``rows`` are
    open until ``ledger.train(row)`` or ``ledger.exclude_row(row, reason)`` is called for each row,
    after which ``ledger.check()`` passes."""

    def __len__(self) -> int:
        return len(self.rows)


class TraceToRows(TraceAdapter[RowSet]):
    """Makes rows of token ids, loss mask, log-probabilities and reward.

    Consecutive calls of one agent share a row as long as each prompt begins with the exact token
    ids of the prompt and the answer before it, and they have the same reward; a new row says in
    ``row_break`` where its prompt went another way. Calls of different attempts are never mixed:
    one attempt of a rollout is used.

    Args:
        agent_match: Regular expression, searched in agents' names; None takes every call. A call
            whose agent is unknown matches nothing.
        credit: The credit rule: its name, a dict of ``type`` and options, or a rule.
        max_length: Calls whose prompt and answer are longer together, in tokens, are excluded.

    Raises:
        ConfigError: A wrong regular expression or length.
        PluginError: There is no such credit rule.
    """

    def __init__(
        self,
        agent_match: str | None = None,
        credit: str | dict[str, Any] | CreditRule = "final",
        max_length: int | None = None,
    ) -> None:
        if max_length is not None and max_length < 2:
            raise ConfigError(f"TraceToRows max_length={max_length}: expected 2 or more")
        self.agent_match = (
            None if agent_match is None else compile_match(agent_match, "TraceToRows agent_match")
        )
        self.max_length = max_length
        self.credit = _credit_rule(credit)

    def adapt(self, source: Sequence[Span], /, attempts: Sequence[Attempt] | None = None) -> RowSet:
        """Rows of one rollout, or of several.

        Args:
            source: Spans in any order; empty gives no rows.
            attempts: The rollouts' attempts: then the last that succeeded is used. Otherwise it is
                the attempt that began last.

        Raises:
            AdapterError: The credit rule did not give one value per call.
        """
        result = RowSet()
        groups = by_attempt(source)
        chosen = _last_begun(groups) if attempts is None else _last_succeeded(attempts)
        reasons = _reasons(groups, chosen, attempts)
        for key, spans in groups.items():
            records = recorded_calls(spans)
            for record in records:
                result.ledger.add_call(record.call)
            if key in reasons:
                reason, detail = reasons[key]
                for record in records:
                    result.ledger.exclude(_exclusion(record.call, reason, detail))
            else:
                self._adapt_attempt(records, spans, result)
        return result

    def _adapt_attempt(
        self, records: Sequence[Recorded], spans: Sequence[Span], result: RowSet
    ) -> None:
        calls = [record.call for record in records]
        rewards = self.credit.assign(calls, spans)
        if len(rewards) != len(calls):
            raise AdapterError(
                f"credit rule {type(self.credit).__name__} gave {len(rewards)} values for "
                f"{len(calls)} calls of rollout {spans[0].rollout_id!r}"
            )
        latest: dict[str | None, TrainingRow] = {}
        for record, reward in zip(records, rewards, strict=True):
            call = record.call
            problem = self._problem(record)
            if problem is None and reward is None:
                problem = ("no_reward", "no reward reached this call")
            if problem is not None:
                result.ledger.exclude(_exclusion(call, *problem))
                continue
            previous = latest.get(call.agent_name)
            row_break = previous and find_break(previous.token_ids, _prompt(call))
            if previous is not None and row_break is None and previous.reward == reward:
                extend(previous, call)
                continue
            row = new_row(call, reward, row_break)
            result.rows.append(row)
            latest[call.agent_name] = row

    def _problem(self, record: Recorded) -> tuple[ExclusionReason, str] | None:
        call = record.call
        if not selects(self.agent_match, call.agent_name):
            return "agent_not_selected", f"its agent is {call.agent_name!r}"
        if record.malformed is not None:
            return "malformed", record.malformed
        if call.error is not None:
            return "model_error", call.error
        prompt, response = call.prompt_token_ids, call.response_token_ids
        if not prompt or not response:
            missing = "prompt" if not prompt else "answer"
            return "no_token_ids", f"the {missing} has no token ids"
        if min(prompt) < 0 or min(response) < 0:
            return "malformed", "a token id is below zero"
        logprobs = call.response_logprobs
        if not logprobs:
            return "no_logprobs", "the answer has no log-probabilities"
        if len(logprobs) != len(response):
            return (
                "malformed",
                f"{len(response)} answer tokens with {len(logprobs)} log-probabilities",
            )
        if not all(math.isfinite(logprob) for logprob in logprobs):
            return "malformed", "a log-probability is not finite"
        length = len(prompt) + len(response)
        if self.max_length is not None and length > self.max_length:
            return "over_length", f"{length} tokens, max_length is {self.max_length}"
        return None


def new_row(call: ModelCall, reward: float | None, row_break: RowBreak | None) -> TrainingRow:
    """A row of one call."""
    row = TrainingRow(
        rollout_id=call.rollout_id,
        attempt_id=call.attempt_id,
        agent_name=call.agent_name,
        token_ids=[],
        loss_mask=[],
        logprobs=[],
        reward=reward,
        call_ids=[],
        row_break=row_break,
    )
    extend(row, call)
    return row


def extend(row: TrainingRow, call: ModelCall) -> None:
    """Append what a call adds to a row that its prompt continues."""
    given = _prompt(call)[len(row.token_ids) :]
    sampled, logprobs = call.response_token_ids or [], call.response_logprobs or []
    row.token_ids.extend([*given, *sampled])
    row.loss_mask.extend([0] * len(given) + [1] * len(sampled))
    row.logprobs.extend([0.0] * len(given) + logprobs)
    row.call_ids.append(call.call_id)
    row.model_versions.append(call.model_version)


def find_break(tokens: Sequence[int], prompt: Sequence[int]) -> RowBreak | None:
    """Where ``prompt`` stops beginning with all of ``tokens``; None when it does to the end."""
    if list(prompt[: len(tokens)]) == list(tokens):
        return None
    pairs = zip(tokens, prompt, strict=False)
    shorter = min(len(tokens), len(prompt))
    position = next((i for i, (one, other) in enumerate(pairs) if one != other), shorter)
    end = position + BREAK_TOKENS
    return RowBreak(
        position=position, expected=list(tokens[position:end]), got=list(prompt[position:end])
    )


def _credit_rule(credit: str | Mapping[str, Any] | CreditRule) -> CreditRule:
    from agl.config import build_component

    return build_component(credit, group="agl.credits", expected_type=CreditRule, default="final")


def _prompt(call: ModelCall) -> list[int]:
    return call.prompt_token_ids or []


def _exclusion(call: ModelCall, reason: ExclusionReason, detail: str) -> Exclusion:
    return Exclusion(
        call_id=call.call_id,
        rollout_id=call.rollout_id,
        attempt_id=call.attempt_id,
        reason=reason,
        detail=detail,
    )


def _last_begun(groups: Mapping[tuple[str, str], Sequence[Span]]) -> dict[str, str]:
    """The attempt of each rollout whose first span is the latest."""
    begun: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
    for (rollout_id, attempt_id), spans in groups.items():
        start = min((span.start_time or 0.0 for span in spans), default=0.0)
        begun[rollout_id].append((start, attempt_id))
    return {rollout_id: max(attempts)[1] for rollout_id, attempts in begun.items()}


def _last_succeeded(attempts: Sequence[Attempt]) -> dict[str, str]:
    succeeded = [attempt for attempt in attempts if attempt.status == "succeeded"]
    in_order = sorted(succeeded, key=lambda attempt: attempt.sequence_id)
    return {attempt.rollout_id: attempt.attempt_id for attempt in in_order}


def _reasons(
    groups: Mapping[tuple[str, str], Sequence[Span]],
    chosen: Mapping[str, str],
    attempts: Sequence[Attempt] | None,
) -> dict[tuple[str, str], tuple[ExclusionReason, str]]:
    """Why attempts that are not used are not."""
    status = {(a.rollout_id, a.attempt_id): a.status for a in attempts or ()}
    reasons: dict[tuple[str, str], tuple[ExclusionReason, str]] = {}
    for key in groups:
        used = chosen.get(key[0])
        if used == key[1]:
            continue
        if used is not None:
            reasons[key] = ("superseded_attempt", f"attempt {used!r} is used")
        else:
            found = status.get(key, "not among the attempts given")
            reasons[key] = (
                "failed_attempt",
                f"no attempt succeeded; the status of this one: {found}",
            )
    return reasons
