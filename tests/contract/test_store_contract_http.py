"""The store contract over HTTP: a client of a server of each store, and the server as a store."""

import pytest
from tests.stores import served

from agl.store.memory import InMemoryLightningStore
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
        async with served(inner, token="s3cret-long-enough") as (server, client):
            yield client if side == "client" else server
