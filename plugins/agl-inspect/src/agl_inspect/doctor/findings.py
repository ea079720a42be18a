"""From a trial to findings: what could be learned, what could not, why, and what to do.

What to do about each stands in ``fixes.toml``.
"""

import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Literal

from agl.algorithm.adapter import TraceToTripletBase
from agl.emitter import find_reward_spans, get_rewards_from_span
from agl.errors import AglError
from agl.types import Attempt, Failure
from agl_inspect.doctor.grades import Graded, find_tokenizer, grade, template_of
from agl_inspect.doctor.trial import Trial
from agl_records.calls.reader import Recorded, recorded_parts
from agl_records.calls.sources import by_scope
from agl_records.row_builder import RowsAdapter, RowSet, rows_adapter
from agl_records.types import EXCLUSION_REASONS, OF_OTHERS, ExclusionReason
from agl_runs.user_code import place_of

_TEXTS = tomllib.loads(files("agl_inspect.doctor").joinpath("fixes.toml").read_text("utf-8"))
FIXES: dict[ExclusionReason, str] = _TEXTS["reasons"]
"""Reason why something trained nothing -> what to do."""
FAILURE_FIXES: dict[str, str] = _TEXTS["boundaries"]
"""Boundary at which an attempt failed -> what to do."""
Level = Literal["error", "warning", "note"]
TOKENS_ONLY = (
    *("no_token_ids", "no_logprobs", "structured_output", "empty_answer"),
    "token_count_mismatch",
)
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
    """Whether anything could be learned from this rollout; of a baseline, measured."""
    learns: bool = True
    """Whether the algorithm learns, and does not only measure."""
    rollout: dict[str, Any] = field(default_factory=dict[str, Any])
    rewards: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    calls: list[Graded] = field(default_factory=list[Graded])
    findings: list[Finding] = field(default_factory=list[Finding])
    equal_rewards: bool = False
    """Whether all rollouts of the task have the same reward, and their calls are to be trained."""
    at_once: str = ""
    """What was seen of several rollouts at once."""


def finding(level: Level, code: str, message: str, of: str | None = None) -> Finding:
    """A finding with its fix: that of its code, unless it is ``of`` another kind."""
    return Finding(level, code, message, {**FIXES, **_TEXTS["findings"]}.get(of or code, ""))


def _nothing_ran(trial: Trial) -> Finding:
    """Why the trial has no rollout."""
    ended = f"algorithm {trial.algorithm!r} ended"
    if trial.error is None:
        return finding("error", "no_rollout", f"{ended} without queuing a rollout")
    message = f"{ended} before any rollout ran: {trial.error}"
    return finding("error", "algorithm_failed", message)


def attempt_failure(attempt: Attempt, error: Failure) -> Finding:
    """Where and why the attempt failed."""
    place = place_of(error.traceback)
    said = f"({error.boundary}): {error.type}: {error.message}{f' ({place})' if place else ''}"
    message = f"the attempt ended as {attempt.status!r} {said}"
    return Finding("error", f"attempt_{attempt.status}", message, FAILURE_FIXES[error.boundary])


def _check_calls(calls: Sequence[Graded], trial: Trial, has_rewards: bool) -> Iterator[Finding]:
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


def _check_answers(calls: Sequence[Graded]) -> Iterator[Finding]:
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


def _check_rewards(
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


def _check_adapter(trial: Trial, calls: Sequence[Graded]) -> Iterator[Finding]:
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


def diagnose(trial: Trial, tokenizer: str | None = None) -> Diagnosis:
    """Look at what came of a trial.

    The chat template of the tokenizer (see ``find_tokenizer``) is tried on calls without token ids,
    and it says what those of others mean.
    """
    if trial.rollout is None:
        return Diagnosis(trial.algorithm, "C", findings=[_nothing_ran(trial)])
    attempt = trial.attempts[-1]
    rows = None  # what the algorithm would get, where that is rows
    if isinstance(trial.adapter, RowsAdapter):
        rows = trial.adapter.adapt(trial.spans, attempts=trial.attempts, model=trial.model)
    result = Diagnosis(trial.algorithm, "C" if rows is None else "A", learns=trial.learns)
    result.rollout = {
        "input": trial.rollout.input,
        "mode": trial.rollout.mode,
        "status": attempt.status,
        "resources": trial.rollout.resources_id,
    }
    own = [span for span in trial.spans if span.attempt_id == attempt.attempt_id]
    for span in find_reward_spans(own):
        first = get_rewards_from_span(span)[0]
        about = {"span_id": span.span_id, "sequence_id": span.sequence_id}
        result.rewards.append({**about, "name": first.name, "value": first.value})
    # Without rows, credit still tells which call a reward would reach.
    account = rows if rows is not None else rows_adapter().adapt(own, attempts=trial.attempts)
    records = recorded_parts(own)
    # Loading one takes seconds, and calls whose tokens are not trained need none if they have some.
    if rows is None and all(grade(record, "")[0] in "A-" for record in records):
        found = ""
    else:
        found = find_tokenizer(tokenizer, trial.options)
    result.calls = [_graded(record, found, account, rows is not None) for record in records]
    result.trainable = _is_trainable(result, attempt, trial)
    result.findings = [*_findings(trial, result, attempt, account)]
    return result


def _findings(
    trial: Trial, result: Diagnosis, attempt: Attempt, account: RowSet
) -> Iterator[Finding]:
    """What there is to say; what several rollouts tell is set in the result, too."""
    if attempt.error is not None:
        yield attempt_failure(attempt, attempt.error)
    elif trial.error is not None:
        yield finding("error", "algorithm_failed", trial.error)
    mode = trial.rollout and trial.rollout.mode
    if result.needs == "A" and mode not in (None, "train") and trial.has_train:
        message = "the algorithm evaluates first, and so no rollout of mode 'train' was tried"
        yield Finding("note", "not_trained_mode", message)
    elif result.needs == "A" and mode not in (None, "train"):
        message = f"the first rollout of the algorithm is of mode {mode!r}"
        yield finding("warning", "not_trained_mode", message)
    if attempt.status == "succeeded":
        # Else its failure is the one reason for all that is missing.
        yield from _check_calls(result.calls, trial, bool(result.rewards))
        yield from _check_answers(result.calls)
        yield from _check_rewards(result.rewards, result.calls, account)
        breaks = [(n, row.row_break) for n, row in enumerate(account.rows) if row.row_break]
        for n, at in breaks:
            message = f"row {n} begins anew: its prompt leaves the row of call {at.call_id} "
            yield finding("note", "row_break", f"{message}at token {at.position}")
        if result.needs == "C":
            yield from _check_adapter(trial, result.calls)
    rewards = trial.final_rewards
    is_compared = result.trainable and result.needs == "A" and len(rewards) >= FEW
    if is_compared and len({*rewards}) == 1:
        result.equal_rewards = True
        yield finding(
            "warning",
            "equal_rewards",
            f"all {len(rewards)} rollouts of this task have the reward {rewards[0]:.4g}; an "
            "algorithm that compares the rollouts of a task learns nothing from equal ones",
        )
    if trial.num_together >= 2 and result.calls:
        of_each = "their calls mix" if trial.num_silent else "each has its own calls"
        result.at_once = f"{trial.num_together} rollouts, and {of_each}"
        if trial.num_silent:
            result.trainable = result.trainable and not trial.shares_process
            yield finding(
                "error" if trial.shares_process else "warning",
                "calls_mix",
                f"{trial.num_silent} of {trial.num_together} rollouts that ran at once have no "
                "recorded call, and others have theirs: the agent makes the address of its LLM "
                "global (a global client, or an environment variable)",
            )
    for name in trial.constant_prompts:
        message = f"the prompt {name!r} has no placeholder, and is the same for every task"
        yield finding("note", "constant_prompt", message)
    if trial.held:
        message = f"the agent held the event loop for {trial.held:.1f} s; other rollouts wait then"
        yield finding("warning" if trial.shares_process else "note", "blocks_loop", message)


def _is_trainable(result: Diagnosis, attempt: Attempt, trial: Trial) -> bool:
    if result.needs == "A" and trial.learns:
        return any(call.grade == "A" for call in result.calls if call.row is not None)
    is_any = any(call.grade != "-" for call in result.calls)
    is_enough = is_any or not (trial.learns and trial.needs_calls)
    return attempt.status == "succeeded" and is_enough and bool(result.rewards)


def _graded(record: Recorded, tokenizer: Any, account: RowSet, counts_tokens: bool) -> Graded:
    call = record.call
    known = tokenizer if counts_tokens and not isinstance(tokenizer, str) else None
    letter, because = grade(record, template_of(tokenizer), known)
    row, credit = next(
        (
            (number, row.credits[row.call_ids.index(call.call_id)])
            for number, row in enumerate(account.rows)
            if call.call_id in row.call_ids
        ),
        (None, None),
    )
    excluded = (one for one in account.ledger.exclusions if one.kind == "call")
    exclusion = next((one for one in excluded if one.call_id == call.call_id), None)
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
        tool_problem=(call.tool_problem or (None,))[0],
        grade=letter,
        because=because,
        row=row,
        reward=credit.reward if credit else None,
        rule=credit.rule if credit else "",
        credit=credit.because if credit else "",
        excluded=exclusion.reason if exclusion else None,
        detail=exclusion.detail if exclusion else "",
    )
