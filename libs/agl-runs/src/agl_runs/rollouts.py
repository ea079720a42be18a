"""Whose rollouts they are: the algorithm's store, which says of each to which run it belongs."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from agl.errors import ConfigError, InvalidTransitionError, ReplacedError
from agl.store.answers import FENCE
from agl.store.base import LightningStore
from agl.store.forwarding import StandInStore
from agl.store.queries import PAGE
from agl.store.rules import OPEN
from agl.types import AttemptedRollout, EnqueueRolloutRequest, Failure, Rollout
from agl_runs.folders import is_alive, is_here
from agl_runs.store import end_run, fence_of, query_runs

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


async def check_alone(store: LightningStore, run_id: str, held: Path | None) -> None:
    """Refuse a run while another one runs in its store.

    ``held`` is the folder whose lock this process has: another run in it, which was killed before
    it could write its id there, has died.

    Raises:
        ConfigError: One does, as far as this machine can tell.
    """
    for run in await query_runs(store):
        if run.run_id == run_id or run.status != "running" or not run.generations:
            continue
        last = run.generations[-1]
        if held is not None and run.folder == str(held) and is_here(last):
            await end_run(store, run.run_id, last.number, "died")
        elif is_alive(run):
            raise ConfigError(
                f"run {run.run_id!r} is running in the same store (process {last.pid} on "
                f"{last.host}): the runners of one would run the rollouts of the other, with the "
                "wrong agent. Wait for its end, or give this run another store; in PostgreSQL "
                "another schema is one: postgresql://...?options=-csearch_path%3DNAME. If that "
                f"machine is gone, delete the run: agl runs delete {run.run_id} --force"
            )


async def cancel_leftovers(store: LightningStore, *run_ids: str) -> None:
    """Cancel the rollouts of runs that are queued or under way.

    For a new start of a run, before it queues any and before its runners claim any: what an earlier
    one left would be run against a model that is served no longer, and nobody waits for it.
    What an algorithm began itself, and no runner has, is left to it: it asks for that by its key.
    """
    if not run_ids:
        return
    left: dict[str, Any] = {"status_in": ["queuing", "requeuing", "preparing", "running"]}
    if len(run_ids) == 1:
        left["run"] = run_ids[0]
    over, after = {*run_ids}, None
    while page := await store.query_rollouts(after=after, limit=PAGE, **left):
        for rollout in page:
            if (rollout.metadata or {}).get("run") in over:
                await _cancel(store, rollout)
        after = page[-1].rollout_id


async def _cancel(store: LightningStore, rollout: Rollout) -> None:
    begun = isinstance(rollout, AttemptedRollout) and rollout.attempt
    if begun and begun.worker_id is None and rollout.status != "requeuing":
        return
    with suppress(InvalidTransitionError):  # it has ended meanwhile
        await store.update_rollout(rollout.rollout_id, status="cancelled")
    if begun and begun.status in OPEN:  # else it and its worker would stay so for ever
        with suppress(InvalidTransitionError):
            ids = rollout.rollout_id, begun.attempt_id
            await store.update_attempt(*ids, status="failed", error=LEFT_OVER)
