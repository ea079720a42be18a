"""A server over a store, and its client."""

import aiohttp
import pytest

from agl_server.client import LightningStoreClient
from agl_server.server import LightningStoreServer


@pytest.fixture
async def server(store):
    server = LightningStoreServer(store, port=0, open=True, max_body_bytes=100_000)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def client(server):
    client = LightningStoreClient(server.endpoint)
    yield client
    await client.close()


@pytest.fixture
async def http(server):
    async with aiohttp.ClientSession(f"{server.endpoint}/v1/agl/") as session:
        yield session
