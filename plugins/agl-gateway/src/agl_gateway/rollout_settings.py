"""What a call needs to know of its rollout; the store is asked once per rollout."""

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from agl.store.base import LightningStore
from agl_records.seeds import SEED

MAX_KNOWN = 65536


class RolloutSettings(NamedTuple):
    """Of a rollout."""

    mode: str | None = None
    """``train``, ``val`` or ``test``."""
    seed: int | None = None
    """What the seeds of its calls come from."""


class Rollouts:
    """Looks rollouts up, and remembers what it found.

    Args:
        get_store: The store of this moment.
    """

    def __init__(self, get_store: Callable[[], LightningStore]) -> None:
        self._get_store = get_store
        self._known: OrderedDict[str, RolloutSettings] = OrderedDict()

    async def of(self, rollout_id: str) -> RolloutSettings:
        """Mode and seed of a rollout; of one that is not there, nothing."""
        if rollout_id not in self._known:
            rollout = await self._get_store().get_rollout_by_id(rollout_id)
            known = RolloutSettings()
            if rollout is not None:
                seed = (rollout.metadata or {}).get(SEED)
                known = RolloutSettings(rollout.mode, seed if type(seed) is int else None)
            self._known[rollout_id] = known
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        return self._known[rollout_id]
