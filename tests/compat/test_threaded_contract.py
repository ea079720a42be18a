"""The store contract over the facade of 0.3, before a store that is not thread-safe."""

import threading
from collections.abc import AsyncGenerator

import pytest

from agentlightning.store.threading import LightningStoreThreaded
from agl.store.memory import InMemoryLightningStore
from agl_testing.store_contract import StoreContract


class OneThreadStore(InMemoryLightningStore):
    """Says that it is not thread-safe, and sees to it that nobody treats it otherwise."""

    home: int | None = None

    @property
    def capabilities(self):
        return {"async_safe": True}

    async def _write(self, operation, *args, **kwargs):
        self.home = self.home or threading.get_ident()
        assert threading.get_ident() == self.home
        return await super()._write(operation, *args, **kwargs)


class TestThreadedStore(StoreContract):
    @pytest.fixture
    async def store(self) -> AsyncGenerator[LightningStoreThreaded]:
        store = LightningStoreThreaded(OneThreadStore(scan_interval_seconds=0.05))
        yield store
        await store.close()
