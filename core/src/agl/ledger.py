"""Keep the ledger of a step in the store, and read it back.

The account of a rollout in a step (a ``LedgerPart``) is one span named ``agentlightning.ledger`` on
its latest attempt: as durable as the attempt, and added for the whole step at once. A rollout that
ended before any attempt began has no spans; its account is ``metadata["ledger"]``.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

from agl.semconv import AGL_LEDGER, LedgerAttributes as Key
from agl.store.base import LightningStore
from agl.types import AttemptedRollout, Attributes, Ledger, LedgerPart, Rollout, Span

METADATA_KEY = "ledger"


async def save_ledger(
    store: LightningStore,
    ledger: Ledger,
    rollouts: Sequence[Rollout],
    *,
    step: int | None = None,
    algorithm: str | None = None,
) -> None:
    """Check a ledger and keep it; a second time for the same step changes nothing.

    Args:
        store: Where the rollouts are.
        ledger: Everything that became of them.
        rollouts: As ``wait_for_rollouts`` or ``query_rollouts`` gave them; all that the ledger
            knows.
        step: Of the algorithm.
        algorithm: Its name.

    Raises:
        LedgerError: It does not balance. Nothing was stored.
        KeyError: It knows a rollout that was not given.
    """
    ledger.check()
    by_id = {rollout.rollout_id: rollout for rollout in rollouts}
    spans: list[Span] = []
    for part in ledger.parts(step=step, algorithm=algorithm):
        rollout = by_id[part.rollout_id]
        part = part.model_copy(update={"mode": rollout.mode})
        if isinstance(rollout, AttemptedRollout):
            spans.append(_span(part, rollout.attempt.attempt_id))
        else:
            metadata = {**(rollout.metadata or {}), METADATA_KEY: part.model_dump(mode="json")}
            await store.update_rollout(rollout.rollout_id, metadata=metadata)
    await store.add_many_spans(spans)


async def load_parts(
    store: LightningStore,
    rollouts: Sequence[Rollout] | None = None,
    *,
    step: int | None = None,
) -> list[LedgerPart]:
    """The accounts that a store keeps, in order of rollouts.

    Args:
        store: Where they are.
        rollouts: Only these; None for all that the store has.
        step: Only of this step.
    """
    if rollouts is None:
        rollouts = (await store.query_rollouts()).items
    parts: list[LedgerPart] = []
    for rollout in rollouts:
        kept: Any = (rollout.metadata or {}).get(METADATA_KEY)
        if kept is not None:
            parts.append(LedgerPart.model_validate(kept))
        if isinstance(rollout, AttemptedRollout):
            for span in await store.query_spans(rollout.rollout_id, name=AGL_LEDGER):
                parts.append(LedgerPart.model_validate_json(str(span.attributes[Key.PART])))
    return [part for part in parts if step is None or part.step == step]


async def load_ledger(
    store: LightningStore,
    rollouts: Sequence[Rollout] | None = None,
    *,
    step: int | None = None,
) -> Ledger:
    """The ledger of the accounts that ``load_parts`` gives; empty when there are none."""
    return Ledger.of_parts(await load_parts(store, rollouts, step=step))


def _span(part: LedgerPart, attempt_id: str) -> Span:
    attributes: Attributes = {Key.PART.value: part.model_dump_json(exclude_defaults=True)}
    if part.step is not None:
        attributes[Key.STEP.value] = part.step
    if part.algorithm is not None:
        attributes[Key.ALGORITHM.value] = part.algorithm
    # One id per step: a store skips what it has already.
    about = f"ledger {part.algorithm} {part.step}"
    return Span.from_attributes(
        name=AGL_LEDGER,
        attributes=attributes,
        rollout_id=part.rollout_id,
        attempt_id=attempt_id,
        span_id=hashlib.sha256(about.encode()).hexdigest()[:16],
    )
