"""Whose rollouts they are: the algorithm's store, which says of each to which run it belongs."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from agl.errors import InvalidTransitionError, ReplacedError
from agl.store.answers import FENCE
from agl.store.base import LightningStore
from agl.store.forwarding import StandInStore
from agl.store.rules import OPEN
from agl.types import AttemptedRollout, EnqueueRolloutRequest, Failure
from agl_runs.store import fence_of

LEFT_OVER: Final = Failure(
    boundary="cancelled", type="left_over", message="the start of the run that it was of is over"
)
"""Failure of an attempt that an earlier start of a run left open."""


class RunStore(StandInStore):
    """Rollouts made here have ``run`` and ``generation`` in their metadata.

    The store refuses what this start writes after another start of the run has taken over.

    Args:
        store: Where they are made.
        run_id: Of the run.
        generation: Which start of it.
    """

    def __init__(self, store: LightningStore, run_id: str, generation: int) -> None:
        super().__init__(store)
        self._fence = fence_of(run_id, generation)
        self._metadata = {"run": run_id, "generation": generation}
        self.refusal: ReplacedError | None = None
        """What the store said when another start had taken over."""

    async def call(self, operation: str, arguments: dict[str, Any]) -> Any:
        if operation == "enqueue_many_rollouts":
            requests: Sequence[EnqueueRolloutRequest] = arguments["rollouts"]
            arguments["rollouts"] = [
                one.model_copy(update={"metadata": self._metadata | (one.metadata or {})})
                for one in requests
            ]
        elif operation in ("enqueue_rollout", "start_rollout"):
            arguments["metadata"] = self._metadata | (arguments.get("metadata") or {})
        token = FENCE.set(self._fence)
        try:
            return await super().call(operation, arguments)
        except ReplacedError as error:
            self.refusal = error
            raise
        finally:
            FENCE.reset(token)


async def cancel_leftovers(store: LightningStore, run_id: str) -> None:
    """Cancel the rollouts of a run that are queued or under way.

    For a new start of the run, before it queues any and before its runners claim any: what an
    earlier one left would be run against a model that is served no longer, and nobody waits for it.
    What an algorithm began itself, and no runner has, is left to it: it asks for that by its key.
    """
    for rollout in await store.query_rollouts(
        status_in=["queuing", "requeuing", "preparing", "running"], run=run_id
    ):
        begun = isinstance(rollout, AttemptedRollout) and rollout.attempt
        is_own = begun and begun.worker_id is None and rollout.status != "requeuing"
        if (rollout.metadata or {}).get("run") == run_id and not is_own:
            with suppress(InvalidTransitionError):  # it has ended meanwhile
                await store.update_rollout(rollout.rollout_id, status="cancelled")
            if begun and begun.status in OPEN:  # else it and its worker would stay so for ever
                with suppress(InvalidTransitionError):
                    ids = rollout.rollout_id, begun.attempt_id
                    await store.update_attempt(*ids, status="failed", error=LEFT_OVER)
