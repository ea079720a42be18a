import pytest

from agl.store.memory import InMemoryLightningStore
from agl_sqlite import SqliteLightningStore


@pytest.fixture(params=["memory", "sqlite"])
async def store(request, tmp_path):
    options = {"scan_interval_seconds": 0.05}
    is_memory, path = request.param == "memory", tmp_path / "agl.db"
    made = InMemoryLightningStore(**options) if is_memory else SqliteLightningStore(path, **options)
    yield made
    await made.close()
