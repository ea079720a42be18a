"""The store contract over every store that ships with the core."""

from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

from agl.store.base import LightningStore
from agl.store.memory import InMemoryLightningStore
from agl.store.sqlite import SqliteLightningStore
from agl.store.threaded import LightningStoreThreaded
from agl_testing.store_contract import StoreContract

SCAN_SECONDS = 0.05


def in_memory(folder: Path) -> LightningStore:
    return InMemoryLightningStore(scan_interval_seconds=SCAN_SECONDS)


def sqlite(folder: Path) -> LightningStore:
    return SqliteLightningStore(folder / "agl.db", scan_interval_seconds=SCAN_SECONDS)


def sqlite_without_file(folder: Path) -> LightningStore:
    return SqliteLightningStore(":memory:", scan_interval_seconds=SCAN_SECONDS)


def threaded(folder: Path) -> LightningStore:
    return LightningStoreThreaded(in_memory(folder))


class OneThreadStore(InMemoryLightningStore):
    """Says that it is not thread-safe, and sees to it that nobody treats it otherwise."""

    home: int | None = None

    @property
    def capabilities(self):
        return {"async_safe": True}

    async def _write(self, operation, *args, **kwargs):
        import threading

        self.home = self.home or threading.get_ident()
        assert threading.get_ident() == self.home
        return await super()._write(operation, *args, **kwargs)


def guarded(folder: Path) -> LightningStore:
    return LightningStoreThreaded(OneThreadStore(scan_interval_seconds=SCAN_SECONDS))


@pytest.fixture(params=[in_memory, sqlite, sqlite_without_file, threaded, guarded])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncGenerator[LightningStore, None]:
    make: Callable[[Path], LightningStore] = request.param
    store = make(tmp_path)
    yield store
    await store.close()


class TestStoreContract(StoreContract):
    pass
