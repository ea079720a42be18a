"""From a trial to findings: what could be learned, what could not, why, and what to do."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from agl.emitter import find_reward_spans, get_rewards_from_span
from agl.types import Attempt
from agl_inspect.doctor.findings import (
    Finding,
    attempt_failure,
    check_adapter,
    check_answers,
    check_calls,
    check_rewards,
    check_rows,
    finding,
    nothing_ran,
)
from agl_inspect.doctor.grades import Graded, find_tokenizer, grade, template_of
from agl_inspect.doctor.trial import Trial
from agl_records.calls.reader import Recorded, recorded_parts
from agl_records.row_builder import RowsAdapter, RowSet, rows_adapter

TOKENS_ONLY = (
    *("no_token_ids", "no_logprobs", "structured_output", "empty_answer"),
    "token_count_mismatch",
)
"""Reasons that keep a call from training weights, and from nothing else."""
FEW = 3
"""Fewer rewards than these may be equal without a word."""


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


def diagnose(trial: Trial, tokenizer: str | None = None) -> Diagnosis:
    """Look at what came of a trial.

    The chat template of the tokenizer (see ``find_tokenizer``) is tried on calls without token ids,
    and it says what those of others mean.
    """
    if trial.rollout is None:
        return Diagnosis(trial.algorithm, "C", findings=[nothing_ran(trial)])
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
        yield from check_calls(result.calls, trial, bool(result.rewards))
        yield from check_answers(result.calls)
        yield from check_rewards(result.rewards, result.calls, account)
        yield from check_rows(account)
        if result.needs == "C":
            yield from check_adapter(trial, result.calls)
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
