"""Stores in files and behind servers, for a moment."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import agl
from agl_sqlite import SqliteLightningStore


@contextlib.asynccontextmanager
async def opened(path: str | Path, **options: Any) -> AsyncIterator[SqliteLightningStore]:
    """The store in a file, closed again at the end."""
    store = SqliteLightningStore(path, **options)
    try:
        yield store
    finally:
        await store.close()


def ask(path: str | Path, question: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    """What is found in the store in a file."""

    async def asked() -> Any:
        async with opened(path) as store:
            return await question(store)

    return asyncio.run(asked())


@contextlib.asynccontextmanager
async def served(
    store: agl.LightningStore | None = None, **options: Any
) -> AsyncIterator[tuple[agl.LightningStoreServer, agl.LightningStoreClient]]:
    """A server before a store, by default one in memory, and its client; closed at the end."""
    store = agl.InMemoryLightningStore() if store is None else store
    server = agl.LightningStoreServer(store, port=0, **options)
    await server.start()
    client = agl.LightningStoreClient(server.endpoint)
    try:
        yield server, client
    finally:
        await client.close()
        await server.close()
