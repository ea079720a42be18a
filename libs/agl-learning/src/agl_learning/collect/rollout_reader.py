"""Reads what an agent did in a rollout: its rewards, its rows, and what went wrong."""

import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from agl.algorithm.adapter import TraceAdapter
from agl.emitter import reward_attributes
from agl.errors import AdapterError, ConfigError, DamagedRecordError
from agl.semconv import AGL_ANNOTATION, LightningSpanAttributes as Keys
from agl.store.base import LightningStore
from agl.types import Attempt, Rollout, Span
from agl.utils.rewards import find_final_rewards, reward_problem
from agl_learning.collect.results import PENALTY, Ended
from agl_records.calls.reader import recorded_parts
from agl_records.final_rewards import graded_only
from agl_records.ledger.ledger import Ledger
from agl_records.row_builder import RowSet
from agl_records.training_data import TrainedModel
from agl_records.types import OF_OTHERS
from agl_runs.failures import Failures, RolloutFailure, failure_of
from agl_runs.mixed_calls import ran

logger = logging.getLogger("agl.learning")


@dataclass
class Reader:
    """Reads rollouts that have ended."""

    store: LightningStore
    adapter: TraceAdapter[Any] | None
    """Gives rows; None reads rewards only."""
    failures: Failures
    """What becomes of rollouts that failed."""
    model: TrainedModel | None = None
    """Whose calls are rows; None takes the calls of all."""
    _shown: set[type[BaseException]] = field(default_factory=set[type[BaseException]])
    """Errors whose traceback the log has: that of a rule comes with every rollout."""

    def check_model(self) -> None:
        """Where the adapter cannot tell models apart, say so, once, and go on with all."""
        if self.model is None or self.adapter is None:
            return
        takes = inspect.signature(self.adapter.adapt).parameters
        if "model" in takes or any(one.kind is one.VAR_KEYWORD for one in takes.values()):
            return
        logger.warning(
            "the adapter %s does not take model=, and so cannot tell calls of %r from those "
            "of other models and judges; all of them may be trained",
            type(self.adapter).__name__,
            self.model.name,
        )
        self.model = None

    async def read(self, rollout: Rollout, group: int, ledger: Ledger) -> Ended:
        """Read a rollout that has ended; the ledger gets its calls, those of its rows open.

        Raises:
            ConfigError: The adapter does not give training rows.
        """
        one = Ended(rollout, group, None)
        try:
            spans = await self.store.query_spans(rollout.rollout_id)
        except DamagedRecordError as error:
            one.problem, one.unusable = str(error), ("malformed", str(error))
            ledger.exclude_rollout(rollout.rollout_id, *one.unusable)
            return one
        attempts = list(await self.store.query_attempts(rollout.rollout_id))
        used = next((a for a in reversed(attempts) if a.status == "succeeded"), None)
        succeeded = rollout.status == "succeeded"
        counts = used if succeeded else attempts[-1] if attempts else None
        of_it = [span for span in spans if counts and span.attempt_id == counts.attempt_id]
        if counts is not None and rollout.status != "cancelled":
            one.failed = failure_of(counts, of_it)
        if not succeeded and one.failed is None:
            one.failed = RolloutFailure("cancelled", f"it ended as {rollout.status}")
        if succeeded and counts is not None:
            one.ran = ran(rollout.rollout_id, counts, of_it)
        policy = self.failures.policy(one.failed)
        is_used = policy in ("keep", "penalise")
        if one.failed is not None and is_used and counts is not None:
            # The attempt that failed is used as one that succeeded.
            attempts = [a.changed(status="succeeded") if a is counts else a for a in attempts]
            if policy == "penalise":
                one.penalty = self.failures.penalty or 0.0
                penalty = _penalty_span(counts, of_it, one.penalty)
                spans, of_it = [*spans, penalty], [*of_it, penalty]
        elif not succeeded:
            one.unusable = "failed_attempt", f"its rollout ended as {rollout.status}"
        elif one.failed is not None:
            why = f"a model call of its rollout failed: {one.failed.why}"
            one.unusable = "infrastructure", why
        if self.adapter is not None:
            self._read_rows(one, self.adapter, spans, attempts, ledger)
        if is_used:
            rewards = find_final_rewards(of_it)
            one.rewards = {reward.name: reward.value for reward in rewards}
            if rewards:
                one.reward = rewards[0].value
            else:
                problems = map(reward_problem, reversed(graded_only(of_it)))
                one.problem = next(filter(None, problems), None)
                if one.failed is not None:
                    one.unusable = "no_reward", f"it failed without a reward: {one.failed.why}"
        return one

    def _read_rows(
        self,
        one: Ended,
        adapter: TraceAdapter[Any],
        spans: Sequence[Span],
        attempts: Sequence[Attempt],
        ledger: Ledger,
    ) -> None:
        adapt: Callable[..., Any] = adapter.adapt
        about: dict[str, Any] = {} if self.model is None else {"model": self.model}
        rollout = one.rollout
        try:
            adapted = adapt(list(spans), attempts=list(attempts), **about)
        except ConfigError:
            raise
        except Exception as error:
            # Anybody may write spans, and what one agent wrote must not end the training of all.
            why = f"its spans cannot be read: {type(error).__name__}: {error}"
            if isinstance(error, AdapterError):  # which names the credit rule, say
                why = str(error)
            new = None if type(error.__cause__ or error) in self._shown else error
            self._shown.add(type(error.__cause__ or error))
            logger.warning("rollout %r: %s", rollout.rollout_id, why, exc_info=new)
            one.unusable = ("malformed", why)
            ledger.exclude_rollout(rollout.rollout_id, *one.unusable)
            return
        if not hasattr(adapted, "rows") or not hasattr(adapted, "ledger"):
            raise ConfigError(
                f"the algorithm learns from training rows; the adapter {type(adapter).__name__} "
                f"gave {type(adapted).__name__}. Use the adapter 'rows', or leave the adapter out"
            )
        read = cast(RowSet, adapted)
        one.rows = read.rows
        one.tokens_left_out = _tokens_left_out(spans, read, self.model)
        ledger.merge(read.ledger)
        if not attempts:
            why = f"it ended as {rollout.status} before any attempt began"
            ledger.exclude_rollout(rollout.rollout_id, "not_run", why)


def _penalty_span(attempt: Attempt, spans: Sequence[Span], reward: float) -> Span:
    """A grade for an attempt that failed, in the place of any other reward of it."""
    return Span.from_attributes(
        name=AGL_ANNOTATION,
        attributes={Keys.GRADED: True, **reward_attributes({PENALTY: reward}, PENALTY)},
        rollout_id=attempt.rollout_id,
        attempt_id=attempt.attempt_id,
        sequence_id=1 + max((span.sequence_id for span in spans), default=0),
        span_id="penalty",
        start_time=attempt.end_time,
        end_time=attempt.end_time,
    )


def _tokens_left_out(
    spans: Sequence[Span], read: RowSet, model: TrainedModel | None
) -> tuple[int, int]:
    """Sampled and given tokens of the model's calls that are in no row, of a conversation once."""
    excluded = {
        one.key
        for one in read.ledger.exclusions
        if one.kind == "call" and one.reason not in {*OF_OTHERS, "late"}
    }
    sampled = given = 0
    begun = [row.token_ids for row in read.rows]
    for recorded in recorded_parts(spans) if excluded else ():
        call = recorded.call
        is_one = (call.rollout_id, call.attempt_id, call.call_id) in excluded
        if not is_one or (model is not None and not model.made(call)):
            continue
        prompt, answer = call.prompt_token_ids or [], call.response_token_ids or []
        known = 0
        for one in reversed(begun):  # what was said last is mostly what goes on
            if known < len(one) <= len(prompt) and prompt[: len(one)] == one:
                known = len(one)
        sampled, given = sampled + len(answer), given + len(prompt) - known
        begun += [prompt, prompt + answer]
    return sampled, given
