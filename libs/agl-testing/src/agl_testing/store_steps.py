"""Steps that the store contracts share."""

import asyncio
import time
from typing import Any

from agl.store.base import LightningStore
from agl.types import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
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


async def claim(store: LightningStore, worker_id: str | None = None) -> AttemptedRollout:
    """Claim what must be there."""
    claimed = await store.dequeue_rollout(worker_id)
    assert claimed is not None
    return claimed


async def report(
    store: LightningStore, rollout: AttemptedRollout, status: AttemptStatus, **more: Any
) -> Attempt:
    """Report the status of the attempt."""
    return await store.update_attempt(
        rollout.rollout_id, rollout.attempt.attempt_id, status=status, **more
    )


async def status_of(store: LightningStore, rollout: Rollout) -> RolloutStatus:
    """The rollout's status now."""
    found = await store.get_rollout_by_id(rollout.rollout_id)
    assert found is not None
    return found.status


async def until(store: LightningStore, rollout: Rollout, status: AttemptStatus) -> Attempt:
    """The latest attempt once the watchdog has given it this status; 20 seconds at most."""
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        attempt = await store.get_latest_attempt(rollout.rollout_id)
        if attempt is not None and attempt.status == status:
            return attempt
        await asyncio.sleep(0.02)
    raise AssertionError(f"the latest attempt of {rollout.rollout_id!r} never became {status!r}")
