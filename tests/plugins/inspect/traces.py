"""Spans, rollouts and stores, written by hand as a gateway, an agent and a run leave them."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from tests.stores import ask

from agl.emitter import reward_attributes
from agl.semconv import AGL_ANNOTATION, MODEL_CALL_SPAN, ModelCallAttributes as Key
from agl.types import Failure, RolloutConfig, Span
from agl_adapters import TraceToRows
from agl_learning.advantages.group_advantages import sibling_advantages
from agl_records.ledger.ledger import Ledger, save_ledger
from agl_sqlite import SqliteLightningStore


def call_of(asked: Any, said: Any, *tokens: Any, number: int | None = None, **more: Any) -> Span:
    """A model call.

    Args:
        asked: Its messages, or the text of one of a user.
        said: The answer's message, or its text.
        tokens: Ids of the prompt and of the answer, and log-probabilities if not all are -0.5.
        number: Of the span, if it is to have a certain id.
        more: Further attributes.
    """
    asked = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    said = {"content": said} if isinstance(said, str) else said
    attributes = {
        Key.OPERATION.value: "chat",
        Key.INPUT_MESSAGES.value: json.dumps(asked),
        Key.OUTPUT_MESSAGES.value: json.dumps([{"role": "assistant", **said}]),
        **more,
    }
    if tokens:
        prompt, sampled, logprobs = (*tokens, [-0.5] * len(tokens[1]))[:3]
        attributes[Key.PROMPT_TOKEN_IDS.value] = prompt
        attributes[Key.RESPONSE_TOKEN_IDS.value] = sampled
        attributes[Key.RESPONSE_LOGPROBS.value] = logprobs
    return _span(MODEL_CALL_SPAN, attributes, number)


def reward_span(value: float, number: int | None = None) -> Span:
    return _span(AGL_ANNOTATION, reward_attributes(value), number)


def _span(name: str, attributes: dict[str, Any], number: int | None) -> Span:
    about = {} if number is None else {"span_id": f"{number:016x}"}
    return Span.from_attributes(name=name, attributes=attributes, **about)


def ids_of(rollout: Any) -> dict[str, str]:
    return {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}


async def add(store, spans, status="succeeded", task="task", **about):
    """A rollout of training that has ended with these spans."""
    rollout = await store.start_rollout(task, **{"mode": "train", **about})
    ids = ids_of(rollout)
    await store.add_many_spans([span.model_copy(update=ids) for span in spans])
    await store.update_attempt(**ids, status=status)
    (ended,) = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
    return ended


async def retried(store: Any) -> tuple[str, str, str]:
    """Ids of a rollout and of its attempts: the first failed, the second succeeded."""
    config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    rollout = await store.start_rollout("task", config=config)
    error = Failure(boundary="agent", type="KeyError", message="'fruit'")
    await store.update_attempt(**ids_of(rollout), status="failed", error=error)
    again = await store.start_attempt(rollout.rollout_id)
    await store.update_attempt(**ids_of(again), status="succeeded")
    return rollout.rollout_id, rollout.attempt.attempt_id, again.attempt.attempt_id


def filled(fill: Callable[[SqliteLightningStore], Awaitable[Any]], path: Any = "s.db") -> Any:
    """What ``fill`` gives, which gets the store of this file, open."""
    return ask(path, fill)


async def account(store, groups, credit="final", train=Ledger.train, **about: Any) -> None:
    """What an algorithm does with groups of ended rollouts: rows, advantages, and a ledger.

    Args:
        store: That has them.
        groups: Rollouts that are compared.
        credit: The rule.
        train: Notes a row in the ledger, with its advantages and its place.
        about: Of the step.
    """
    ledger, place = Ledger(), 0
    for group in groups:
        rows_G = []
        for rollout in group:
            spans = list(await store.query_spans(rollout.rollout_id))
            attempts = list(await store.query_attempts(rollout.rollout_id))
            made = TraceToRows(credit=credit).adapt(spans, attempts=attempts)
            ledger.merge(made.ledger)
            rows_G.append(made.rows)
        for rows, given in zip(rows_G, sibling_advantages(rows_G), strict=True):
            for row, advantages in zip(rows, given, strict=True):
                train(ledger, row, advantages, place)
                place += 1
    ended = [rollout for group in groups for rollout in group]
    await save_ledger(store, ledger, ended, **{"step": 1, "algorithm": "toy", **about})
