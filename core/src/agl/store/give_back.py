"""Giving back what was claimed and will not be run."""

import contextlib
import logging
from collections.abc import Sequence

from agl.errors import InvalidTransitionError, StoreError
from agl.store.base import LightningStore
from agl.store.retry import is_away
from agl.store.rules import CLAIM_ABANDONED, ENDED
from agl.types import AttemptedRollout

logger = logging.getLogger(__name__)


async def give_back(store: LightningStore, claimed: Sequence[AttemptedRollout]) -> None:
    """Put rollouts back into the queue, each for itself: one that cannot be keeps no other.

    Of a rollout that was cancelled in the meantime only the attempt ends; one that somebody else
    has claimed in the meantime is left as it is.

    Raises:
        StoreUnavailableError: The store is away. A full disk is not: it may hold the next one.
    """
    for rollout in claimed:
        try:
            await _give_back(store, rollout)
        except StoreError as error:
            if is_away(error):
                raise
            logger.warning("rollout %r could not be given back: %s", rollout.rollout_id, error)


async def _give_back(store: LightningStore, claimed: AttemptedRollout) -> None:
    rollout_id, attempt_id = claimed.rollout_id, claimed.attempt.attempt_id
    now = await store.get_rollout_by_id(rollout_id)
    if not isinstance(now, AttemptedRollout) or now.attempt.attempt_id != attempt_id:
        return
    if now.status not in ENDED:
        with contextlib.suppress(InvalidTransitionError):  # it ends in this moment
            await store.update_rollout(rollout_id, status="requeuing")
            return
    with contextlib.suppress(InvalidTransitionError):
        await store.update_attempt(rollout_id, attempt_id, status="failed", error=CLAIM_ABANDONED)
