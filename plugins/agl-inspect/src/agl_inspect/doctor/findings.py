"""What there is to say of a trial, each with what to do about it."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agl.algorithm.adapter import TraceToTripletBase
from agl.errors import AglError
from agl.types import Attempt, Failure, Rollout
from agl_inspect.doctor.fixes import FAILURE_FIXES, FINDING_FIXES, FIXES
from agl_inspect.doctor.grades import Graded
from agl_inspect.doctor.trial import Trial
from agl_records.calls.sources.unread import by_scope
from agl_records.row_builder import RowSet
from agl_records.types import EXCLUSION_REASONS, OF_OTHERS, ExclusionReason
from agl_runs.user_code import place_of

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """Something to know, and what to do about it."""

    level: Level
    """``error``: this kept something from being learned."""
    code: str
    message: str
    fix: str = ""


def nothing_ran(trial: Trial) -> Finding:
    """Why the trial has no rollout."""
    if trial.error is not None:
        message = f"algorithm {trial.algorithm!r} ended before any rollout ran: {trial.error}"
        return Finding("error", "algorithm_failed", message, "See: agl --debug doctor FILE")
    message = f"algorithm {trial.algorithm!r} ended without queuing a rollout"
    fix = "Give it tasks: 'train: FILE' in the configuration"
    return Finding("error", "no_rollout", message, fix)


def not_training(rollout: Rollout, has_train: bool) -> Finding:
    """Whether the first rollout is an evaluation because there is nothing to train on."""
    if has_train:
        message = "the algorithm evaluates first, and so no rollout of mode 'train' was tried"
        return Finding("note", "not_trained_mode", message)
    message = f"the first rollout of the algorithm is of mode {rollout.mode!r}"
    return Finding("warning", "not_trained_mode", message, FIXES["not_trained_mode"])


def attempt_failure(attempt: Attempt, error: Failure) -> Finding:
    """Where and why the attempt failed."""
    place = place_of(error.traceback)
    where = f" ({place})" if place else ""
    return Finding(
        "error",
        f"attempt_{attempt.status}",
        f"the attempt ended as {attempt.status!r} ({error.boundary}): {error.type}: "
        f"{error.message}{where}",
        FAILURE_FIXES[error.boundary],
    )


def check_calls(calls: Sequence[Graded], trial: Trial, has_rewards: bool) -> list[Finding]:
    """Calls that are missing or excluded."""
    if not calls:
        message = "no model call was recorded"
        if trial.num_unattributed:
            message += (
                f": {trial.num_unattributed} came to the gateway at an address that is no rollout's"
            )
        fix = FIXES["no_calls"] if trial.takes_model else FINDING_FIXES["calls_no_model"]
        if not trial.learns:
            return [Finding("note", "no_calls", message, fix)]
        if not trial.needs_calls:
            message += ": the models that write prompts see tasks and rewards, and no conversation"
            return [Finding("warning", "no_calls", message, fix)]
        return [Finding("error", "no_calls", message, fix)]
    grouped: defaultdict[ExclusionReason, list[Graded]] = defaultdict(list)
    for call in calls:
        # A missing reward is said once, for the whole rollout.
        if call.excluded is not None and (call.excluded != "no_reward" or has_rewards):
            grouped[call.excluded].append(call)
    some_left = any(call.excluded is None for call in calls)
    findings: list[Finding] = []
    for reason, some in grouped.items():
        level = "note" if reason in OF_OTHERS and some_left else "error"
        message = (
            f"{len(some)} of {len(calls)} calls are excluded as {reason} "
            f"({EXCLUSION_REASONS[reason]})"
        )
        details = [call.detail for call in some if call.detail]
        if reason == "unrecognised_span":
            message += f": {'; '.join(by_scope(details))}"
        elif details:
            message += f": {min(details)}"
        findings.append(Finding(level, reason, message, _fix(reason, some)))
    return findings


def check_prompts(calls: Sequence[Graded]) -> list[Finding]:
    """Token-exact calls whose tokens do not say what was sent."""
    lost = [call for call in calls if call.row is not None and call.grade == "C"]
    if not lost:
        return []
    message = f"of {len(lost)} of {len(calls)} calls the model gets something else: "
    return [
        Finding("error", "prompt_lost", message + lost[0].because, FINDING_FIXES["prompt_lost"])
    ]


def check_answers(calls: Sequence[Graded]) -> list[Finding]:
    """What is trained, and is seldom what was meant."""
    trained = [call for call in calls if call.excluded is None]
    found = Counter(call.tool_problem for call in trained)
    found["truncated"] = sum(call.truncated for call in trained)
    kinds = {
        "truncated": "were cut off at the limit of tokens",
        "broken_tool_call": "call a tool with arguments that are no JSON object",
        "unknown_tool": "call a tool that was not offered",
    }
    return [
        Finding(
            "warning", code, f"{found[code]} of {len(calls)} answers {what}", FINDING_FIXES[code]
        )
        for code, what in kinds.items()
        if found[code]
    ]


def _fix(reason: ExclusionReason, calls: Sequence[Graded]) -> str:
    if reason == "no_token_ids" and not any(call.through_gateway for call in calls):
        return FINDING_FIXES["past_the_gateway"]
    if reason == "model_error" and any("context_length" in call.detail for call in calls):
        return FINDING_FIXES["too_long"]
    if reason == "agent_not_selected":
        names = sorted({call.agent_name for call in calls if call.agent_name})
        if not names:
            return FINDING_FIXES["no_agent_names"]
        return FIXES[reason].replace("NAMES", ", ".join(names))
    return FIXES[reason]


def check_rewards(
    rewards: Sequence[Mapping[str, Any]], calls: Sequence[Graded], account: RowSet
) -> list[Finding]:
    """Rewards that are missing, refused or unused."""
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
    if not rewards and all(call.reward is None for call in calls):
        return [Finding("error", "no_reward", "the agent gave no reward", FIXES["no_reward"])]
    values = {reward["span_id"]: reward["value"] for reward in rewards}
    if not calls and len({*values.values()}) > 1:
        given = ", ".join(f"{value:.4g}" for value in values.values())
        message = f"the agent gave several rewards ({given}), and the last one alone counts"
        fix = FIXES["superseded_reward"]
        return [Finding("warning", "superseded_reward", message, fix)]
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
        if exclusion.kind == "reward" and calls and exclusion.call_id in values
    ]


def check_rows(account: RowSet) -> list[Finding]:
    """Calls that do not continue the row of the one before."""
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


def check_adapter(trial: Trial, rows: RowSet | None, calls: Sequence[Graded]) -> list[Finding]:
    """An adapter that cannot read the spans."""
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
