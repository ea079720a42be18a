"""What the account of an attempt says of calls and rewards that train nothing."""

from collections.abc import Sequence

from agl.types import Span
from agl_adapters.credit.rewards import all_rewards_of, calls_before, places, rewards_of
from agl_records.calls.reader import Recorded
from agl_records.ledger.ledger import Ledger
from agl_records.training_data import ModelCall
from agl_records.types import Credit, Exclusion, ExclusionReason

OF_ANSWERS: frozenset[ExclusionReason] = frozenset(
    (
        *("no_token_ids", "no_logprobs", "malformed", "over_length", "no_reward", "empty_answer"),
        *("refused_reward", "truncated", "unfinished", "token_count_mismatch"),
        *("contradictory_answer", "broken_tool_call", "unknown_tool"),
    )
)
"""Reasons that are those of one answer, and not of the call."""


def source_of_final_reward(spans: Sequence[Span]) -> list[str]:
    """The id of the span that has the final reward of an attempt; none if it has no reward."""
    return [one.span.span_id for one in rewards_of(spans) if one.problem is None][-1:]


def account_for_rewards(
    calls: Sequence[ModelCall],
    credits: Sequence[Credit],
    spans: Sequence[Span],
    rule: str,
    ledger: Ledger,
) -> None:
    """Put each reward of an attempt that is used into its bin: used by the rule, or why not."""
    used = {span_id for credit in credits for span_id in credit.sources}
    rewards, order = all_rewards_of(spans), places(spans)
    is_told = all(credit.sources for credit in credits if credit.reward is not None)
    counting = {one.span.span_id for one in rewards_of(spans)}
    last_used = max((n for n, one in enumerate(rewards) if one.span.span_id in used), default=-1)
    for number, reward in enumerate(rewards):
        span = reward.span
        ledger.add_reward(span.rollout_id, span.attempt_id, span.span_id)
        if span.span_id in used:
            ledger.use_reward(span.rollout_id, span.attempt_id, span.span_id)
            continue
        if span.span_id not in counting:
            why = ("superseded_reward", "the attempt was graded, and only its grade counts")
        elif reward.problem is not None:
            why = ("refused_reward", reward.problem)
        elif not calls:
            why = ("no_calls", "the attempt has no recorded call that it could reach")
        elif any(credit.reason == "unordered_reward" for credit in credits):
            why = ("unordered_reward", "it is not known which calls came before it")
        elif not calls_before(span, calls, order):
            why = ("reward_before_call", "it came before the answer to the first call")
        elif number < last_used:
            why = ("superseded_reward", f"the rule {rule!r} took a later reward of the attempt")
        elif is_told:
            why = ("unused_reward", f"the rule {rule!r} gave it to no call")
        else:
            why = ("unused_reward", f"the rule {rule!r} does not name it as a source of a credit")
        ledger.exclude(_exclusion_of_reward(span, *why))


def announce(records: Sequence[Recorded], ledger: Ledger) -> None:
    """Tell the ledger of calls, of those with several answers of each."""
    for part in (part for record in records for part in record.call.parts()):
        ledger.add_call(part)


def leave_out(
    records: Sequence[Recorded],
    spans: Sequence[Span],
    reason: ExclusionReason,
    detail: str,
    ledger: Ledger,
) -> None:
    """Exclude these calls, and the rewards of the spans: of an attempt that is not used, say."""
    announce(records, ledger)
    for record in records:
        error = record.call.error
        why = f"{detail}; the call itself failed: {error}" if error else detail
        exclude_all(record.call, reason, why, None, ledger)
    for reward in all_rewards_of(spans):
        span = reward.span
        ledger.add_reward(span.rollout_id, span.attempt_id, span.span_id)
        ledger.exclude(_exclusion_of_reward(span, reason, detail))


def exclude_all(
    call: ModelCall, reason: ExclusionReason, detail: str, credit: Credit | None, ledger: Ledger
) -> None:
    """Exclude a call; of one with several answers all, those that were not used as such."""
    for part in call.parts():
        if reason in OF_ANSWERS and call.choice not in (None, part.choice):
            _exclude_unused(part, call, ledger)
        else:
            ledger.exclude_call(part, reason, detail, credit)


def used_answer(call: ModelCall, ledger: Ledger) -> ModelCall:
    """The answer of several that was used, as a call; the others are excluded."""
    for part in call.parts():
        if part.choice != call.choice:
            _exclude_unused(part, call, ledger)
    return call.part(call.choice or 0)


def _exclude_unused(part: ModelCall, call: ModelCall, ledger: Ledger) -> None:
    used = f"answer {call.choice} of {len(call.choices)}, from 0, was used"
    ledger.exclude_call(part, "unused_choice", used)


def _exclusion_of_reward(span: Span, reason: ExclusionReason, detail: str) -> Exclusion:
    return Exclusion(
        kind="reward",
        call_id=span.span_id,
        rollout_id=span.rollout_id,
        attempt_id=span.attempt_id,
        reason=reason,
        detail=detail,
    )
