"""Release a claim: a runner puts back a rollout that it claimed and will not run."""

import contextlib
import logging
from typing import Any

from agl.errors import InvalidTransitionError, StoreError, is_away
from agl.store.base import LightningStore
from agl.store.rules import CLAIM_ABANDONED, ENDED
from agl.types import AttemptedRollout

logger = logging.getLogger(__name__)


async def release_claim(store: LightningStore, claimed: AttemptedRollout) -> None:
    """Put a claimed rollout back into the queue; log it if the store refuses.

    If the rollout was cancelled meanwhile, only its attempt ends. If another runner has claimed
    the rollout meanwhile, nothing changes.

    Raises:
        StoreUnavailableError: The store cannot be reached. A full disk does not raise.
    """
    rollout_id, attempt_id = claimed.rollout_id, claimed.attempt.attempt_id
    try:
        now = await store.get_rollout_by_id(rollout_id)
        if not isinstance(now, AttemptedRollout) or now.attempt.attempt_id != attempt_id:
            return
        with contextlib.suppress(InvalidTransitionError):
            if now.status not in ENDED:
                await store.update_rollout(rollout_id, status="requeuing")
                return
        with contextlib.suppress(InvalidTransitionError):
            about: Any = {"status": "failed", "error": CLAIM_ABANDONED}
            await store.update_attempt(rollout_id, attempt_id, **about)
    except StoreError as error:
        if is_away(error):
            raise
        logger.warning("rollout %r could not be put back into the queue: %s", rollout_id, error)
