"""Why one token got what it got: events, rule, group, terms, bin, step; and all computed again."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from agl.algorithm.base import Algorithm
from agl.errors import AglError, ConfigError
from agl.plugins.build import plan_component
from agl.store.base import LightningStore
from agl.types import Rollout
from agl_learning.advantages.estimator_option import ACROSS_TASKS
from agl_learning.reports.run_metrics import RunMetrics
from agl_records.training_data import ModelCall
from agl_records.types import EXCLUSION_REASONS, Exclusion, ExclusionReason, LedgerPart, Trained
from agl_runs.config.file import with_defaults
from agl_runs.differences import flat
from agl_runs.records import Run
from agl_runs.store import get_run
from agl_views.explanations.explanation import CallLine, Chain, group_of
from agl_views.explanations.recomputation import calls_of, compared_credits, moments_in, recompute
from agl_views.explanations.token_parts import Bin, Group, Member, Step, TokenExplanation, terms_of

METRICS = (
    *("grad_norm", "gradient_steps", "learning_rate", "clip_fraction", "logprob_gap"),
    *("version_lag", "loss/", "kl", "entropy", "train/"),
)
"""Beginnings of the names of metrics that are about a gradient step."""


async def explain_token(
    store: LightningStore, chain: Chain, call_id: str, place: int, *, again: bool = False
) -> TokenExplanation:
    """Explain a token that a model sampled.

    Args:
        store: Where its rollout is.
        chain: What ``explain`` gave of the rollout.
        call_id: Which call of it.
        place: Which token of its answer, from 0.
        again: Whether to compute credit, mean and advantage once more, from the spans.

    Raises:
        ConfigError: There is no such call, or its answer has fewer tokens.
    """
    call = chain.calls.get(call_id)
    ids = (call.response_token_ids or []) if call is not None else []
    if call is None or place >= len(ids):
        raise ConfigError(
            f"rollout {chain.rollout.rollout_id!r} has no token {place} in a call {call_id!r}; "
            f"{'there is no such call' if call is None else f'its answer has {len(ids)}'}. See: "
            f"agl show {chain.rollout.rollout_id} --tokens"
        )
    line, part = chain.whole.lines.get(call_id), chain.part
    items = [] if part is None else calls_of(part)
    item = next((one for one in items if one.call_id == call_id), None)
    run = await get_run(store, part.run) if part is not None and part.run is not None else None
    options = _options(run, call)
    got = line or CallLine(call_id, call.attempt_id, call.agent_name)
    found = TokenExplanation(
        *(call.rollout_id, got, place, ids[place]),
        logprob=call.response_logprobs[place] if call.response_logprobs else None,
        events=tuple(one for one in chain.whole.rewards if one.span_id in got.sources),
        group=None if item is None else _group(chain, item),
        num_shared=1 if got.advantage is None else 0 if got.is_mean else len(ids),
        num_calls=_num_sharing(chain, got),
        bin=_bin(chain, line, place),
        step=None if part is None else _step(chain, part, call, run, options),
    )
    found = replace(found, terms=terms_of(found, options))
    if again and item is not None:
        found = replace(
            found, again=await recompute(store, run, options, chain, item, got.estimator)
        )
    return found


def _num_sharing(chain: Chain, line: CallLine) -> int:
    if not line.sources:
        return 1
    given = (line.sources, line.attempt_id)
    return sum((one.sources, one.attempt_id) == given for one in chain.whole.lines.values())


def _options(run: Run | None, call: ModelCall) -> dict[str, Any]:
    """Those of the algorithm that trains the model of the call."""
    found: Any = run.config.get("algorithm") if run is not None else None
    options = {**cast("dict[str, Any]", found)} if isinstance(found, dict) else {}
    if of_model := options.get("models", {}).get(call.served_model):
        with suppress(AglError):  # its algorithm is not installed here
            about: Any = {"group": "agl.algorithms", "expected_type": Algorithm, "where": "models"}
            options = {**with_defaults(of_model, plan_component(of_model, **about)), **options}
        options |= of_model
    return {**options, **flat(options)}


def _group(chain: Chain, item: Trained | Exclusion) -> Group | None:
    """None where nothing is compared: examples of fine-tuning, evaluations."""
    name = item.credit.group if item.credit else ""
    of_group = moments_in([part for _, part in chain.siblings], name)
    if of_group is None:
        return None
    members: list[Member] = []
    for one, part in chain.siblings:
        compared = compared_credits(part, name)
        mean = sum(compared) / len(compared) if compared else None
        why_not = "" if compared else _left_out(one, part)
        members.append(Member(one.rollout_id, one.reward, mean, bool(compared), why_not))
    members.sort(key=lambda member: member.rollout_id != item.rollout_id)
    return Group(name, tuple(members), of_group.mean, of_group.std)


def _left_out(one: Rollout, part: LedgerPart) -> str:
    reasons: list[ExclusionReason] = [
        item.reason for item in part.excluded if item.kind in ("call", "rollout")
    ]
    if reasons:
        return EXCLUSION_REASONS[max(set(reasons), key=reasons.count)]
    return f"it ended as {one.status}" if one.status != "succeeded" else "it is compared elsewhere"


def _bin(chain: Chain, line: CallLine | None, place: int) -> Bin:
    part, row, at = chain.part, None, None
    if line is not None and line.tokens and chain.trace.is_whole:  # else they are not all rows
        row = next(one.number for one in chain.whole.rows if line in one.calls)
        at = line.tokens[0] + place
    if part is None or line is None:
        return Bin("open", because="no algorithm has accounted for it", row=row, position=at)
    if line.excluded is not None:
        words = EXCLUSION_REASONS[line.excluded]
        detail = f"{words}: {line.detail}" if line.detail else words
        return Bin("excluded", line.excluded, detail, is_lost=part.lost)
    return Bin("trained", row=row, position=at, is_lost=part.lost)


def _step(
    chain: Chain, part: LedgerPart, call: ModelCall, run: Run | None, options: Mapping[str, Any]
) -> Step:
    """The step of an account; what is in its means as far as the ledger tells that."""
    trained = [group_of(one) for one, part in chain.of_step if _num_calls(part.trained)]
    is_across = options.get("estimator.type") in ACROSS_TASKS  # see ``Weighed.left_out``
    in_vain = [
        group
        for one, part in chain.of_step
        if not _num_calls(part.trained) and _in_vain(part)
        if (group := group_of(one)) in trained or (is_across and trained)
    ]
    num_tokens: int | None = None
    if chain.trace.is_whole:
        rows = [line.tokens for row in chain.whole.rows for line in row.calls if line.tokens]
        calls = [chain.calls[one] for one in _in_vain(part) if one in chain.calls]
        num_tokens = sum(end - start for start, end in rows)
        num_tokens += sum(len(one.response_token_ids or ()) for one in calls)
    metrics: dict[str, float] = {}
    of_model = f"{call.served_model}/"  # where several models are trained
    for line in RunMetrics.of(run).lines if run is not None else ():
        if line.get("step") == part.step and "val/reward/mean" not in line:
            own = {name.removeprefix(of_model): value for name, value in line.items()}
            metrics = {name: float(own[name]) for name in own if name.startswith(METRICS)}
    return Step(
        run=part.run,
        algorithm=part.algorithm,
        number=part.step,
        generation=part.generation,
        sampled_by=call.model_version,
        made=part.version,
        num_trained=len(trained),
        num_rollouts=len(trained) + len(in_vain),
        num_tokens=num_tokens,
        metrics=metrics,
    )


def _num_calls(items: Sequence[Trained]) -> int:
    return sum(one.kind == "call" for one in items)


def _in_vain(part: LedgerPart) -> set[str]:
    """The calls that were compared with the others, and are no better and no worse."""
    return {one.call_id for one in part.excluded if one.reason == "zero_advantage"}
