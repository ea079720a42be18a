"""The store contract over HTTP: a client of a server of each store, and the server as a store."""

import pytest

from agl.store.memory import InMemoryLightningStore
from agl_server.client import LightningStoreClient
from agl_server.server import LightningStoreServer
from agl_sqlite import SqliteLightningStore
from agl_testing.store_contract import StoreContract

# What goes wrong on the way or in the store behind it goes wrong in the first; the others at night.
OTHERS = [
    pytest.param(name, marks=pytest.mark.nightly)
    for name in ("client of memory", "server of memory")
]


class TestStoreContractOverHttp(StoreContract):
    @pytest.fixture(params=["client of sqlite", *OTHERS])
    async def store(self, request, tmp_path):
        side, backend = request.param.split(" of ")
        inner = (
            InMemoryLightningStore(scan_interval_seconds=0.05)
            if backend == "memory"
            else SqliteLightningStore(tmp_path / "agl.db", scan_interval_seconds=0.05)
        )
        server = LightningStoreServer(inner, port=0, token="s3cret-long-enough")
        await server.start()
        client = LightningStoreClient(server.endpoint, token="s3cret-long-enough")
        yield client if side == "client" else server
        await client.close()
        await server.close()
