"""A server over a store, and its client."""

import aiohttp
import pytest
from tests.stores import served

from agl_server.client import LightningStoreClient


@pytest.fixture
async def server(store):
    async with served(store, open=True, max_body_bytes=100_000) as (server, _):
        yield server


@pytest.fixture
async def client(server):
    client = LightningStoreClient(server.endpoint)
    yield client
    await client.close()


@pytest.fixture
async def http(server):
    async with aiohttp.ClientSession(f"{server.endpoint}/v1/agl/") as session:
        yield session
