"""Stores in files, opened for a moment."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from agl_sqlite import SqliteLightningStore


@contextlib.asynccontextmanager
async def opened(path: str | Path, **options: Any) -> AsyncIterator[SqliteLightningStore]:
    """The store in a file, closed again at the end."""
    store = SqliteLightningStore(path, **options)
    try:
        yield store
    finally:
        await store.close()
