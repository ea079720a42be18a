"""A store as one sees it who may look and nothing else."""

from typing import Any

from agl.errors import NotAllowedError
from agl.store.access.readers import visible
from agl.store.access.rules import ALLOWED
from agl.store.base import LightningStore
from agl.store.forwarding import ForwardingStore
from agl.store.operation_table import Operation


class Looking(ForwardingStore):
    """Hands on what a reader's token allows, and hides in answers what such a token does not show.

    Args:
        store: Whatever it allows by itself.
    """

    def __init__(self, store: LightningStore) -> None:
        self._store = store

    @property
    def target(self) -> LightningStore:
        return self._store

    async def call(self, operation: Operation, arguments: dict[str, Any]) -> Any:
        """Ask the store.

        Raises:
            NotAllowedError: It would change something.
        """
        if operation.name not in ALLOWED["reader"] and operation.name != "close":
            raise NotAllowedError(f"a page over a store may not {operation.name}")
        return visible(await super().call(operation, arguments))
