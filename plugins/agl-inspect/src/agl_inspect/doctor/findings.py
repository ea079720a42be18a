"""What there is to say of a trial, each with what to do about it, which ``fixes.toml`` says."""

import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

from agl.algorithm.adapter import TraceToTripletBase
from agl.errors import AglError
from agl.types import Attempt, Failure
from agl_inspect.doctor.grades import Graded
from agl_inspect.doctor.trial import Trial
from agl_records.calls.sources.unread import by_scope
from agl_records.row_builder import RowSet
from agl_records.types import EXCLUSION_REASONS, OF_OTHERS, ExclusionReason
from agl_runs.user_code import place_of

_TEXTS = tomllib.loads(files("agl_inspect.doctor").joinpath("fixes.toml").read_text("utf-8"))
FIXES: dict[ExclusionReason, str] = _TEXTS["reasons"]
"""Reason why something trained nothing -> what to do."""
FAILURE_FIXES: dict[str, str] = _TEXTS["boundaries"]
"""Boundary at which an attempt failed -> what to do."""
Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """Something to know, and what to do about it."""

    level: Level
    """``error``: this kept something from being learned."""
    code: str
    message: str
    fix: str = ""


def finding(level: Level, code: str, message: str, of: str | None = None) -> Finding:
    """A finding with its fix: that of its code, unless it is ``of`` another kind."""
    return Finding(level, code, message, {**FIXES, **_TEXTS["findings"]}.get(of or code, ""))


def nothing_ran(trial: Trial) -> Finding:
    """Why the trial has no rollout."""
    ended = f"algorithm {trial.algorithm!r} ended"
    if trial.error is not None:
        return finding(
            "error", "algorithm_failed", f"{ended} before any rollout ran: {trial.error}"
        )
    return finding("error", "no_rollout", f"{ended} without queuing a rollout")


def attempt_failure(attempt: Attempt, error: Failure) -> Finding:
    """Where and why the attempt failed."""
    place = place_of(error.traceback)
    said = f"({error.boundary}): {error.type}: {error.message}{f' ({place})' if place else ''}"
    message = f"the attempt ended as {attempt.status!r} {said}"
    return Finding("error", f"attempt_{attempt.status}", message, FAILURE_FIXES[error.boundary])


def check_calls(calls: Sequence[Graded], trial: Trial, has_rewards: bool) -> Iterator[Finding]:
    """Calls that are missing or excluded."""
    if not calls:
        yield _no_calls(trial)
    grouped: defaultdict[ExclusionReason, list[Graded]] = defaultdict(list)
    for call in calls:
        # A missing reward is said once, for the whole rollout.
        if call.excluded is not None and (call.excluded != "no_reward" or has_rewards):
            grouped[call.excluded].append(call)
    some_left = any(call.excluded is None for call in calls)
    for reason, some in grouped.items():
        meaning = f"{reason} ({EXCLUSION_REASONS[reason]})"
        message = f"{len(some)} of {len(calls)} calls are excluded as {meaning}"
        details = [call.detail for call in some if call.detail]
        if reason == "unrecognised_span":
            message += f": {'; '.join(by_scope(details))}"
        elif details:
            message += f": {min(details)}"
        level = "note" if reason in OF_OTHERS and some_left else "error"
        yield Finding(level, reason, message, _fix(reason, some))


def _no_calls(trial: Trial) -> Finding:
    message = "no model call was recorded"
    if trial.num_unattributed:
        at = f"{trial.num_unattributed} came to the gateway at an address that is no rollout's"
        message += f": {at}"
    level: Level = "error" if trial.learns else "note"
    if trial.learns and not trial.needs_calls:
        level = "warning"
        message += ": the models that write prompts see tasks and rewards, and no conversation"
    return finding(level, "no_calls", message, None if trial.takes_model else "calls_no_model")


def _fix(reason: ExclusionReason, calls: Sequence[Graded]) -> str:
    special = _TEXTS["findings"]
    if reason == "no_token_ids" and not any(call.through_gateway for call in calls):
        return special["past_the_gateway"]
    if reason == "model_error" and any("context_length" in call.detail for call in calls):
        return special["too_long"]
    names = sorted({call.agent_name for call in calls if call.agent_name})
    if reason == "agent_not_selected" and not names:
        return special["no_agent_names"]
    return FIXES[reason].replace("NAMES", ", ".join(names))


def check_answers(calls: Sequence[Graded]) -> Iterator[Finding]:
    """Prompts whose tokens do not say what was sent; answers that are seldom what was meant."""
    lost = [call for call in calls if call.row is not None and call.grade == "C"]
    if lost:
        message = f"of {len(lost)} of {len(calls)} calls the model gets something else: "
        yield finding("error", "prompt_lost", message + lost[0].because)
    trained = [call for call in calls if call.excluded is None]
    found = Counter(call.tool_problem for call in trained)
    found["truncated"] = sum(call.truncated for call in trained)
    kinds = {
        "truncated": "were cut off at the limit of tokens",
        "broken_tool_call": "call a tool with arguments that are no JSON object",
        "unknown_tool": "call a tool that was not offered",
    }
    for code, what in kinds.items():
        if found[code]:
            yield finding("warning", code, f"{found[code]} of {len(calls)} answers {what}")


def check_rewards(
    rewards: Sequence[Mapping[str, Any]], calls: Sequence[Graded], account: RowSet
) -> Iterator[Finding]:
    """Rewards that are missing, refused or unused."""
    excluded = [one for one in account.ledger.exclusions if one.kind == "reward"]
    refused = [one for one in excluded if one.reason == "refused_reward"]
    for one in refused:
        message = f"the reward of span {one.call_id} cannot be read: {one.detail}"
        yield finding("error", "refused_reward", message)
    if refused:
        return
    # AIR's rewards are no spans, but they reach calls.
    if not rewards and all(call.reward is None for call in calls):
        yield finding("error", "no_reward", "the agent gave no reward")
    values = {reward["span_id"]: reward["value"] for reward in rewards}
    if not calls and len({*values.values()}) > 1:
        given = ", ".join(f"{value:.4g}" for value in values.values())
        message = f"the agent gave several rewards ({given}), and the last one alone counts"
        yield finding("warning", "superseded_reward", message)
    for one in excluded if calls else ():  # without calls, that they are missing is said already
        if one.call_id in values:
            message = (
                f"the reward {values[one.call_id]:.4g} (span {one.call_id}) is not used: "
                f"{EXCLUSION_REASONS[one.reason]}{f' ({one.detail})' if one.detail else ''}"
            )
            yield finding("warning", one.reason, message)


def check_rows(account: RowSet) -> Iterator[Finding]:
    """Calls that do not continue the row of the one before."""
    for number, row in enumerate(account.rows):
        if (at := row.row_break) is not None:
            message = f"row {number} begins anew: its prompt leaves the row of call {at.call_id} "
            yield finding("note", "row_break", f"{message}at token {at.position}")


def check_adapter(trial: Trial, calls: Sequence[Graded]) -> Iterator[Finding]:
    """An adapter that makes no rows, and cannot read the spans."""
    if isinstance(trial.adapter, TraceToTripletBase) and any(c.grade in "BC" for c in calls):
        message = "some triplets have no token ids or no log-probabilities"
        fix = f"Fine for prompts; to train weights: {FIXES['no_token_ids']}"
        yield Finding("warning", "no_token_ids", message, fix)
        return
    used = [a.attempt_id for a in trial.attempts if a.status == "succeeded"][-1:]
    spans = [span for span in trial.spans if span.attempt_id in used]
    if trial.adapter is None or not spans:
        return
    try:
        trial.adapter.adapt(spans)
    except AglError as error:
        message = f"{type(trial.adapter).__name__} cannot read them: {error}"
        yield finding("error", "adapter_failed", message)
