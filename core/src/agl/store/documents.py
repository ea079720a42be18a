"""The contract of a store, as far as it is about documents, and about deleting."""

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Final, NamedTuple

from agl.store.operation import operation
from agl.types import Document, PaginatedResult


class Fence(NamedTuple):
    """Names a document whose version says which writer is current; its body says who that is.

    A writer with a lower version may not write.
    """

    kind: str
    key: str
    version: int


FENCE: Final[ContextVar[Fence | None]] = ContextVar("agl_fence", default=None)
"""The fence of the current caller; a store raises a ``ReplacedError`` and writes nothing if the
document's version is higher. A caller without a fence is never refused."""

RETRY_SECONDS: Final[ContextVar[float]] = ContextVar("agl_store_retry_seconds", default=60.0)
"""So long a call waits for a store whose disk is full, about as a client over HTTP asks again. A
server sets 0 for what it answers, as its clients decide how long they wait."""


class StoreDocuments:
    """What libraries and plugins keep in a store, apart from what agents and runners write.

    A document is a JSON value with a kind, a key and a version: the record of a run, say, or what
    an algorithm has learned from a rollout.
    """

    @operation
    async def put_documents(self, documents: Sequence[Document]) -> None:
        """Keep documents, all or none.

        One with ``expect`` is kept if that version is stored (0: none is), so that of two writers
        who have read the same version one is refused. One without ``expect`` takes the place of a
        stored one whose version is the same or lower. Where a higher version is stored, that one
        stays: the write came late, from a process that was thought dead.

        Raises:
            ConflictError: Another version is stored than one expects.
            UnknownRecordError: A ``rollout_id`` does not exist.
        """
        ...

    @operation
    async def query_documents(
        self,
        kind: str,
        *,
        key_in: Sequence[str] | None = None,
        key_prefix: str = "",
        rollout_id_in: Sequence[str] | None = None,
        after: str | None = None,
        limit: int = -1,
    ) -> PaginatedResult[Document]:
        """Documents of a kind, in the order of their keys.

        Args:
            key_in: Only these; an empty one matches nothing.
            after: Only keys behind this one, the last of the page before; ``total`` counts all.
        """
        ...

    @operation
    async def delete_documents(self, kind: str, keys: Sequence[str]) -> int:
        """Delete documents of a kind, and return how many were there."""
        ...

    @operation
    async def delete_rollouts(
        self, rollout_ids: Sequence[str], *, only_count: bool = False
    ) -> dict[str, int]:
        """Delete rollouts, their attempts and spans, and the documents about them.

        Resources that only these rollouts used go with them, but for the latest ones.

        Args:
            rollout_ids: Which; unknown ones are passed over.
            only_count: Delete nothing, and only say how much it would be.

        Returns:
            How many ``rollouts``, ``attempts``, ``spans``, ``documents`` and ``resources``.
        """
        ...
