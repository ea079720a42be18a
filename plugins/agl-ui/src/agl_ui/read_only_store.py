"""A store as one sees it who may look and nothing else; one damaged record hides no other."""

from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from agl.errors import AglError, ConfigError, DamagedRecordError, NotAllowedError
from agl.store.base import LightningStore
from agl.store.forwarding import ForwardingStore
from agl_http.roles import ALLOWED, visible
from agl_sqlite.damage import PAGED, query_undamaged


@dataclass
class Damage:
    """What a page passes over, and says."""

    problems: dict[str, None] = field(default_factory=dict[str, None])
    """In their order, each once."""
    spans: bool = False
    """Whether spans are passed over as well. Who reads a reward must not: without the last one an
    earlier one would count."""


DAMAGE: ContextVar[Damage | None] = ContextVar("DAMAGE", default=None)
"""Of the page that is being written; None where damage is to be told by an error."""


class ReadOnlyStore(ForwardingStore):
    """Hands on what a reader's token allows, and hides in answers what such a token does not show.

    Args:
        store: Whatever it allows by itself.
    """

    def __init__(self, store: LightningStore) -> None:
        self._store = store

    @property
    def target(self) -> LightningStore:
        return self._store

    async def call(self, operation: str, arguments: dict[str, Any]) -> Any:
        """Ask the store.

        Raises:
            NotAllowedError: It would change something, or the store refuses the token.
            DamagedRecordError: A record cannot be read, and is not to be passed over.
        """
        if operation not in ALLOWED["reader"] and operation != "close":
            raise NotAllowedError(f"a page over a store may not {operation}")
        damage = DAMAGE.get()
        try:
            return await self._ask(operation, arguments)
        except DamagedRecordError:
            if damage is None or operation not in PAGED:
                raise
            if operation == "query_spans" and not damage.spans:
                raise
        return await query_undamaged(partial(self._ask, operation), arguments, damage.problems)

    async def _ask(self, operation: str, arguments: dict[str, Any]) -> Any:
        try:
            return visible(await super().call(operation, arguments))
        except ConfigError as error:  # of a server: the token is not one of its own
            raise NotAllowedError(str(error)) from error
        except AglError:
            raise
        except ValueError as error:  # it holds what no record of its kind can
            why = " ".join(str(error).split())[:300]
            what = operation.removeprefix("query_").replace("_", " ")
            raise DamagedRecordError(f"one of the store's {what} cannot be read: {why}") from error
