"""From a trial to findings: what could be learned, what could not, why, and what to do."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agl.algorithm.adapter import TraceToTripletBase
from agl.emitter import find_reward_spans, get_rewards_from_span
from agl.errors import AglError
from agl.runs.result import place_of
from agl.types import (
    EXCLUSION_REASONS,
    Attempt,
    Credit,
    Exclusion,
    ExclusionReason,
    Failure,
    Span,
)
from agl_inspect.doctor.fixes import (
    BROKEN_TOOL_CALL,
    CALLS_MIX,
    CALLS_NO_MODEL,
    CUT_OFF,
    EQUAL_REWARDS,
    FAILURE_FIXES,
    FIXES,
    NO_AGENT_NAMES,
    PAST_THE_GATEWAY,
    PROMPT_LOST,
    TOO_LONG,
)
from agl_inspect.doctor.grades import Graded, find_tokenizer, grade, template_of
from agl_inspect.doctor.trial import Trial
from agl_learning.calls.reading import Recorded, recorded_parts
from agl_learning.reading import OF_OTHERS
from agl_learning.rows import RowsAdapter, RowSet
from agl_learning.rows_adapter import rows_adapter

Level = Literal["error", "warning", "note"]
TOKENS_ONLY = ("no_token_ids", "no_logprobs", "structured_output", "empty_answer")
"""Reasons that keep a call from training weights, and from nothing else."""
FEW = 3
"""Fewer rewards than these may be equal without a word."""


@dataclass(frozen=True)
class Finding:
    """Something to know, and what to do about it."""

    level: Level
    """``error``: this kept something from being learned."""
    code: str
    message: str
    fix: str = ""


@dataclass
class Diagnosis:
    """All that a trial says."""

    algorithm: str
    needs: Literal["A", "C"]
    """The grade that the algorithm's adapter asks for."""
    trainable: bool = False
    """Whether anything could be learned from this rollout."""
    rollout: dict[str, Any] = field(default_factory=dict[str, Any])
    rewards: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    calls: list[Graded] = field(default_factory=list[Graded])
    findings: list[Finding] = field(default_factory=list[Finding])
    equal_rewards: bool = False
    """Whether all rollouts of the task have the same reward, and their calls are to be trained."""
    at_once: str = ""
    """What was seen of several rollouts at once."""


def diagnose(trial: Trial, tokenizer: str | None = None) -> Diagnosis:
    """Look at what came of a trial.

    Args:
        trial: The trial.
        tokenizer: Whose chat template is tried on calls without token ids, and which says what
            those of others mean; see ``find_tokenizer``.
    """
    if trial.rollout is None:
        result = Diagnosis(trial.algorithm, "C")
        result.findings.append(_nothing_ran(trial))
        return result
    attempt = trial.attempts[-1]
    rows = _rows(trial)
    result = Diagnosis(trial.algorithm, "C" if rows is None else "A")
    result.rollout = {
        "input": trial.rollout.input,
        "mode": trial.rollout.mode,
        "status": attempt.status,
        "resources": trial.rollout.resources_id,
    }
    own = [span for span in trial.spans if span.attempt_id == attempt.attempt_id]
    result.rewards = [
        {"span_id": span.span_id, "sequence_id": span.sequence_id, **_primary(span)}
        for span in find_reward_spans(own)
    ]
    if attempt.error is not None:
        result.findings.append(_failure(attempt, attempt.error))
    elif trial.error is not None:
        finding = Finding("error", "algorithm_failed", trial.error, "See: agl --debug doctor FILE")
        result.findings.append(finding)
    if trial.rollout.mode not in (None, "train"):
        message = f"the first rollout of the algorithm is of mode {trial.rollout.mode!r}"
        fix = FIXES["not_trained_mode"]
        result.findings.append(Finding("warning", "not_trained_mode", message, fix))
    # Without rows, credit still tells which call a reward would reach.
    account = rows if rows is not None else rows_adapter().adapt(own, attempts=trial.attempts)
    records = recorded_parts(own)
    found = _tokenizer(records, tokenizer, trial.options, rows is not None)
    result.calls = [_graded(record, found, account, rows is not None) for record in records]
    if attempt.status == "succeeded":
        # Else its failure is the one reason for all that is missing.
        result.findings += _of_calls(result, trial)
        result.findings += _of_prompts(result.calls)
        result.findings += _of_answers(result.calls)
        result.findings += _of_rewards(result, account)
        result.findings += _of_rows(account)
        result.findings += _of_adapter(trial, rows, result.calls)
    result.trainable = _is_trainable(result, attempt)
    _look_at_spread(trial, result)
    _look_at_mixing(trial, result)
    return result


def _look_at_spread(trial: Trial, result: Diagnosis) -> None:
    rewards = trial.final_rewards
    if not result.trainable or result.needs != "A" or len(rewards) < FEW or len({*rewards}) > 1:
        return
    result.equal_rewards = True
    message = (
        f"all {len(rewards)} rollouts of this task have the reward {rewards[0]:.4g}; an algorithm "
        "that compares the rollouts of a task learns nothing from equal ones"
    )
    result.findings.append(Finding("warning", "equal_rewards", message, EQUAL_REWARDS))


def _look_at_mixing(trial: Trial, result: Diagnosis) -> None:
    if trial.num_together < 2 or not result.calls:
        return
    if not trial.num_silent:
        result.at_once = f"{trial.num_together} rollouts, and each has its own calls"
        return
    result.at_once = f"{trial.num_together} rollouts, and their calls mix"
    message = (
        f"{trial.num_silent} of {trial.num_together} rollouts that ran at once have no recorded "
        "call, and others have theirs: the agent makes the address of its LLM global (a global "
        "client, or an environment variable)"
    )
    level: Level = "error" if trial.shares_process else "warning"
    result.findings.append(Finding(level, "calls_mix", message, CALLS_MIX))
    result.trainable = result.trainable and not trial.shares_process


def _is_trainable(result: Diagnosis, attempt: Attempt) -> bool:
    if result.needs == "A":
        return any(call.grade == "A" for call in result.calls if call.row is not None)
    has_text = any(call.grade != "-" for call in result.calls)
    return attempt.status == "succeeded" and has_text and bool(result.rewards)


def _rows(trial: Trial) -> RowSet | None:
    """What the algorithm would get, where that is rows."""
    if not isinstance(trial.adapter, RowsAdapter):
        return None
    return trial.adapter.adapt(trial.spans, attempts=trial.attempts, model=trial.model)


def _tokenizer(
    records: Sequence[Recorded],
    tokenizer: str | None,
    options: Mapping[str, Any],
    counts_tokens: bool,
) -> Any:
    # Loading one takes seconds, and calls whose tokens are not trained need none if they have some.
    if not counts_tokens and all(grade(record, "")[0] in "A-" for record in records):
        return ""
    return find_tokenizer(tokenizer, options)


def _graded(record: Recorded, tokenizer: Any, account: RowSet, counts_tokens: bool) -> Graded:
    call = record.call
    known = tokenizer if counts_tokens and not isinstance(tokenizer, str) else None
    letter, because = grade(record, template_of(tokenizer), known)
    row, credit = _place(call.call_id, account)
    exclusion = _exclusion(call.call_id, account)
    if exclusion is not None:
        credit = exclusion.credit
        if not counts_tokens and exclusion.reason in TOKENS_ONLY:
            exclusion = None
    return Graded(
        call_id=call.call_id,
        span_name=record.node.name,
        through_gateway=record.is_gateways,
        agent_name=call.agent_name,
        model=call.model,
        prompt_tokens=len(call.prompt_token_ids) if call.prompt_token_ids else None,
        response_tokens=(None if call.response_token_ids is None else len(call.response_token_ids)),
        truncated=call.is_truncated,
        broken_tool_call=call.has_broken_tool_call,
        grade=letter,
        because=because,
        row=row,
        reward=credit.reward if credit else None,
        rule=credit.rule if credit else "",
        credit=credit.because if credit else "",
        excluded=exclusion.reason if exclusion else None,
        detail=exclusion.detail if exclusion else "",
    )


def _place(call_id: str, account: RowSet) -> tuple[int | None, Credit | None]:
    for number, row in enumerate(account.rows):
        if call_id in row.call_ids:
            return number, row.credits[row.call_ids.index(call_id)]
    return None, None


def _exclusion(call_id: str, account: RowSet) -> Exclusion | None:
    found = (e for e in account.ledger.exclusions if e.kind == "call" and e.call_id == call_id)
    return next(found, None)


def _primary(span: Span) -> dict[str, Any]:
    first = get_rewards_from_span(span)[0]
    return {"name": first.name, "value": first.value}


# --- findings


def _nothing_ran(trial: Trial) -> Finding:
    if trial.error is not None:
        message = f"algorithm {trial.algorithm!r} ended before any rollout ran: {trial.error}"
        return Finding("error", "algorithm_failed", message, "See: agl --debug doctor FILE")
    message = f"algorithm {trial.algorithm!r} ended without queuing a rollout"
    fix = "Give it tasks: 'train: FILE' in the configuration"
    return Finding("error", "no_rollout", message, fix)


def _failure(attempt: Attempt, error: Failure) -> Finding:
    place = place_of(error.traceback)
    where = f" ({place})" if place else ""
    return Finding(
        "error",
        f"attempt_{attempt.status}",
        f"the attempt ended as {attempt.status!r} ({error.boundary}): {error.type}: "
        f"{error.message}{where}",
        FAILURE_FIXES[error.boundary],
    )


def _of_calls(result: Diagnosis, trial: Trial) -> list[Finding]:
    if not result.calls:
        message = "no model call was recorded"
        if trial.num_unattributed:
            message += (
                f": {trial.num_unattributed} came to the gateway at an address that is no rollout's"
            )
        fix = FIXES["no_calls"] if trial.takes_model else CALLS_NO_MODEL
        return [Finding("error", "no_calls", message, fix)]
    grouped: defaultdict[ExclusionReason, list[Graded]] = defaultdict(list)
    for call in result.calls:
        # A missing reward is said once, for the whole rollout.
        if call.excluded is not None and (call.excluded != "no_reward" or result.rewards):
            grouped[call.excluded].append(call)
    some_left = any(call.excluded is None for call in result.calls)
    findings: list[Finding] = []
    for reason, calls in grouped.items():
        level = "note" if reason in OF_OTHERS and some_left else "error"
        message = (
            f"{len(calls)} of {len(result.calls)} calls are excluded as {reason} "
            f"({EXCLUSION_REASONS[reason]})"
        )
        if detail := min((call.detail for call in calls if call.detail), default=""):
            message += f": {detail}"
        findings.append(Finding(level, reason, message, _fix(reason, calls)))
    return findings


def _of_prompts(calls: Sequence[Graded]) -> list[Finding]:
    """Token-exact calls whose tokens do not say what was sent."""
    lost = [call for call in calls if call.row is not None and call.grade == "C"]
    if not lost:
        return []
    message = f"of {len(lost)} of {len(calls)} calls the model gets something else: "
    return [Finding("error", "prompt_lost", message + lost[0].because, PROMPT_LOST)]


def _of_answers(calls: Sequence[Graded]) -> list[Finding]:
    """What is trained, and is seldom what was meant."""
    trained = [call for call in calls if call.excluded is None]
    kinds = (
        ("truncated", "were cut off at the limit of tokens", CUT_OFF),
        ("broken_tool_call", "call a tool with arguments that are no JSON", BROKEN_TOOL_CALL),
    )
    return [
        Finding("warning", code, f"{count} of {len(calls)} answers {what}", fix)
        for code, what, fix in kinds
        if (count := sum(getattr(call, code) for call in trained))
    ]


def _fix(reason: ExclusionReason, calls: Sequence[Graded]) -> str:
    if reason == "no_token_ids" and not any(call.through_gateway for call in calls):
        return PAST_THE_GATEWAY
    if reason == "model_error" and any("context_length" in call.detail for call in calls):
        return TOO_LONG
    if reason == "agent_not_selected":
        names = sorted({call.agent_name for call in calls if call.agent_name})
        if not names:
            return NO_AGENT_NAMES
        return FIXES[reason].replace("NAMES", ", ".join(names))
    return FIXES[reason]


def _of_rewards(result: Diagnosis, account: RowSet) -> list[Finding]:
    refused = [
        Finding(
            "error",
            "refused_reward",
            f"the reward of span {one.call_id} cannot be read: {one.detail}",
            FIXES["refused_reward"],
        )
        for one in account.ledger.exclusions
        if one.kind == "reward" and one.reason == "refused_reward"
    ]
    if refused:
        return refused
    # AIR's rewards are no spans, but they reach calls.
    if not result.rewards and all(call.reward is None for call in result.calls):
        return [Finding("error", "no_reward", "the agent gave no reward", FIXES["no_reward"])]
    values = {reward["span_id"]: reward["value"] for reward in result.rewards}
    return [
        Finding(
            "warning",
            exclusion.reason,
            f"the reward {values[exclusion.call_id]:.4g} (span {exclusion.call_id}) is not used: "
            f"{EXCLUSION_REASONS[exclusion.reason]}"
            + (f" ({exclusion.detail})" if exclusion.detail else ""),
            FIXES[exclusion.reason],
        )
        for exclusion in account.ledger.exclusions
        # Without calls, that they are missing is said already.
        if exclusion.kind == "reward" and result.calls and exclusion.call_id in values
    ]


def _of_rows(account: RowSet) -> list[Finding]:
    return [
        Finding(
            "note",
            "row_break",
            f"row {number} begins anew: its prompt leaves the row of call {row.row_break.call_id} "
            f"at token {row.row_break.position}",
            "Nothing is lost; rows grow longer where the agent only appends to its messages, and "
            "the chat template keeps earlier answers as they were sampled",
        )
        for number, row in enumerate(account.rows)
        if row.row_break is not None
    ]


def _of_adapter(trial: Trial, rows: RowSet | None, calls: Sequence[Graded]) -> list[Finding]:
    if rows is not None or trial.adapter is None:
        return []
    if isinstance(trial.adapter, TraceToTripletBase) and any(c.grade in "BC" for c in calls):
        message = "some triplets have no token ids or no log-probabilities"
        fix = f"Fine for prompts; to train weights: {FIXES['no_token_ids']}"
        return [Finding("warning", "no_token_ids", message, fix)]
    used = [a.attempt_id for a in trial.attempts if a.status == "succeeded"][-1:]
    spans = [span for span in trial.spans if span.attempt_id in used]
    if not spans:
        return []
    name = type(trial.adapter).__name__
    try:
        trial.adapter.adapt(spans)
    except AglError as error:
        fix = "Leave out 'adapter', or choose one that fits the spans. See: agl plugins"
        return [Finding("error", "adapter_failed", f"{name} cannot read them: {error}", fix)]
    return []
