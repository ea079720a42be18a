"""Keep the ledger of a step in the store, and read it back.

The account of a rollout in a step is a ``LedgerPart``, in a table of its own: what agents record
cannot stand among them. Save a step after the update that used its rows, so that rows of an update
that failed are never in the store as trained.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from agl.store.base import LightningStore
from agl.store.queries import each_record
from agl.types import Ledger, LedgerPart, Rollout


async def save_ledger(
    store: LightningStore,
    ledger: Ledger,
    rollouts: Sequence[Rollout],
    *,
    step: int | None = None,
    algorithm: str | None = None,
    run: str | None = None,
    generation: int = 0,
    version: str | int | None = None,
) -> None:
    """Check a ledger and keep it, all or nothing; again for the same step, it replaces that.

    Args:
        store: Where the rollouts are.
        ledger: Everything that became of them.
        rollouts: As ``wait_for_rollouts`` or ``query_rollouts`` gave them; all that the ledger
            knows.
        step: Of the algorithm.
        algorithm: Its name.
        run: Id of the run.
        generation: Which start of the run this is, from 1.
        version: Of the weights that came out of the step.

    Raises:
        LedgerError: It does not balance. Nothing was stored.
        KeyError: It knows a rollout that was not given.
    """
    parts = ledger_parts(
        ledger,
        rollouts,
        step=step,
        algorithm=algorithm,
        run=run,
        generation=generation,
        version=None if version is None else str(version),
    )
    await store.add_ledger_parts(parts)


def ledger_parts(ledger: Ledger, rollouts: Sequence[Rollout], **about: Any) -> list[LedgerPart]:
    """What ``save_ledger`` keeps, for those who keep it later.

    Args:
        ledger: See ``save_ledger``.
        rollouts: See there.
        about: Fields of ``LedgerPart``.

    Raises:
        LedgerError: It does not balance.
        KeyError: It knows a rollout that was not given.
    """
    ledger.check()
    modes = {rollout.rollout_id: rollout.mode for rollout in rollouts}
    return [
        part.model_copy(update={"mode": modes[part.rollout_id]}) for part in ledger.parts(**about)
    ]


def each_part(
    store: LightningStore,
    *,
    run: str | None = None,
    step: int | None = None,
    lost: bool | None = None,
) -> AsyncGenerator[LedgerPart]:
    """The accounts that a store keeps, read page by page; see ``query_ledger_parts``."""
    return each_record(store.query_ledger_parts, run=run, step=step, lost=lost)


async def load_parts(
    store: LightningStore,
    rollouts: Sequence[Rollout] | None = None,
    *,
    step: int | None = None,
) -> list[LedgerPart]:
    """The accounts that count, in the order in which they were kept.

    Args:
        store: Where they are.
        rollouts: Only these; None for all that the store has.
        step: Only of this step.
    """
    ids = None if rollouts is None else [rollout.rollout_id for rollout in rollouts]
    return list(await store.query_ledger_parts(rollout_id_in=ids, step=step, lost=False))


async def load_ledger(
    store: LightningStore,
    rollouts: Sequence[Rollout] | None = None,
    *,
    step: int | None = None,
) -> Ledger:
    """The ledger of the accounts that ``load_parts`` gives; empty when there are none."""
    return Ledger.of_parts(await load_parts(store, rollouts, step=step))
