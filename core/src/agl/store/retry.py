"""How long a call waits for a store whose disk is full or fails, and when waiting is of no use."""

from contextvars import ContextVar

from agl.errors import StoreDiskError, StoreUnavailableError

RETRY_SECONDS: ContextVar[float] = ContextVar("agl_store_retry_seconds", default=60.0)
"""About as long as a client over HTTP asks again. A server sets 0 for what it answers: it says at
once how things are, and its clients decide how long they wait."""


def is_away(error: BaseException) -> bool:
    """Whether it says that the store is gone; one with a full disk may take the next record."""
    return isinstance(error, StoreUnavailableError) and not isinstance(error, StoreDiskError)
