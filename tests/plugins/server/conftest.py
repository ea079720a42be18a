"""A server over a store, and its client."""

from collections.abc import AsyncGenerator

import aiohttp
import pytest

from agl.store.base import LightningStore
from agl_server.client import LightningStoreClient
from agl_server.server import LightningStoreServer


@pytest.fixture
async def server(store: LightningStore) -> AsyncGenerator[LightningStoreServer]:
    server = LightningStoreServer(store, port=0, open=True, max_body_bytes=100_000)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def client(server: LightningStoreServer) -> AsyncGenerator[LightningStoreClient]:
    client = LightningStoreClient(server.endpoint)
    yield client
    await client.close()


@pytest.fixture
async def http(server: LightningStoreServer) -> AsyncGenerator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"{server.endpoint}/v1/agl/") as session:
        yield session
