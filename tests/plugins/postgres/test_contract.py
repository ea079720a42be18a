"""The store in PostgreSQL does what every store must do."""

import pytest

from agl_postgres.store import PostgresLightningStore
from agl_testing.store_contract import StoreContract


class TestPostgresStore(StoreContract):
    @pytest.fixture
    async def store(self, url):
        store = PostgresLightningStore(url, scan_interval_seconds=0.05)
        yield store
        await store.close()
