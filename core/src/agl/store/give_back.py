"""Giving back what was claimed and will not be run."""

import contextlib
import logging
from typing import Any

from agl.errors import InvalidTransitionError, StoreError, is_away
from agl.store.base import LightningStore
from agl.store.rules import CLAIM_ABANDONED, ENDED
from agl.types import AttemptedRollout

logger = logging.getLogger(__name__)


async def give_back(store: LightningStore, claimed: AttemptedRollout) -> None:
    """Put a rollout back into the queue; what the store refuses is logged.

    Of one that was cancelled in the meantime only the attempt ends; one that somebody else has
    claimed in the meantime is left as it is.

    Raises:
        StoreUnavailableError: The store is away. A full disk is not: it may hold the next one.
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
        logger.warning("rollout %r could not be given back: %s", rollout_id, error)
