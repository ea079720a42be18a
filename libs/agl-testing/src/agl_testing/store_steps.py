"""Steps that the store contracts share."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from agl.store.base import AttemptEnd, LightningStore
from agl.types import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    EnqueueRolloutRequest,
    Failure,
    Rollout,
    RolloutConfig,
    RolloutStatus,
    Span,
)

RETRY_ONCE = RolloutConfig(max_attempts=2, retry_condition=["failed", "timeout", "unresponsive"])


def span_of(rollout: AttemptedRollout, name: str = "step", **fields: Any) -> Span:
    """A span of the attempt, without a number."""
    return Span.from_attributes(
        attributes=fields.pop("attributes", {"i": 1}),
        rollout_id=rollout.rollout_id,
        attempt_id=rollout.attempt.attempt_id,
        name=name,
        **fields,
    )


async def enqueue(store: LightningStore, number: int) -> Sequence[Rollout]:
    """Queue tasks, which are the numbers from 0 on."""
    requests = [EnqueueRolloutRequest(input=index) for index in range(number)]
    return await store.enqueue_many_rollouts(requests)


async def claim(
    store: LightningStore, worker_id: str | None = None, wait_seconds: float = 0.0
) -> AttemptedRollout:
    """Claim what must be there, or come."""
    claimed = await store.dequeue_rollout(worker_id, wait_seconds=wait_seconds)
    assert claimed is not None
    return claimed


def ids_of(rollout: AttemptedRollout) -> tuple[str, str]:
    """Of the rollout and of its attempt."""
    return rollout.rollout_id, rollout.attempt.attempt_id


async def report(
    store: LightningStore, rollout: AttemptedRollout, status: AttemptStatus, **more: Any
) -> Attempt:
    """Report the status of the attempt."""
    return await store.update_attempt(*ids_of(rollout), status=status, **more)


def end_of(rollout: AttemptedRollout, error: Failure | None = None) -> AttemptEnd:
    """How the attempt ended."""
    return AttemptEnd(
        rollout_id=rollout.rollout_id,
        attempt_id=rollout.attempt.attempt_id,
        status="failed" if error else "succeeded",
        error=error,
    )


async def column(query: Any, field: str, *ids: str | None, **options: Any) -> list[Any]:
    """A field of each record that a query of the store finds."""
    return [getattr(one, field) for one in await query(*ids, **options)]


async def find(store: LightningStore, rollout: Rollout) -> Rollout:
    """The rollout as it is now."""
    found = await store.get_rollout_by_id(rollout.rollout_id)
    assert found is not None
    return found


async def status_of(store: LightningStore, rollout: Rollout) -> RolloutStatus:
    """The rollout's status now."""
    return (await find(store, rollout)).status


async def latest(store: LightningStore, rollout: Rollout) -> Attempt:
    """The rollout's latest attempt, which must be there."""
    attempt = await store.get_latest_attempt(rollout.rollout_id)
    assert attempt is not None
    return attempt


async def work_of(store: LightningStore, worker_id: str) -> tuple[str, str | None, str | None]:
    """A worker's status, and the ids of the rollout and the attempt that it works on."""
    worker = await store.get_worker_by_id(worker_id)
    assert worker is not None
    return worker.status, worker.current_rollout_id, worker.current_attempt_id


async def until(store: LightningStore, rollout: Rollout, status: AttemptStatus) -> Attempt:
    """The latest attempt once the watchdog has given it this status; 20 seconds at most."""
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        attempt = await latest(store, rollout)
        if attempt.status == status:
            return attempt
        await asyncio.sleep(0.02)
    raise AssertionError(f"the latest attempt of {rollout.rollout_id!r} never became {status!r}")
