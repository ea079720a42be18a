"""``pytest --store postgres``: stores that tests open in memory, or in a file, are in PostgreSQL.

One server keeps them all, each in a schema of its own; that of a file is named after its path, so
that a script, a command and a test that open the same path have the same store.
"""

import asyncio
import hashlib
import itertools
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

ADDRESS = "AGL_TEST_POSTGRES"
"""Variable with the address of the server, for the processes of a test, too."""
_numbers = itertools.count()
_stores = weakref.WeakSet[Any]()
"""Those in memory, which nobody closes."""


def replace_stores() -> None:
    """Put stores in PostgreSQL in the place of those of this process."""
    import agl.store.memory
    import agl_sqlite.store
    from agl_postgres.store import PostgresLightningStore

    known = os.environ[ADDRESS]  # a fork server's scripts have only what their test gives them

    def address_of(place: str) -> str:
        import psycopg

        address = os.environ.get(ADDRESS, known)
        schema = "s" + hashlib.sha256(place.encode()).hexdigest()[:16]
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}".encode())
        return f"{address}&options=-csearch_path%3D{schema}"

    class InMemoryLightningStore(PostgresLightningStore):
        def __init__(self, *, thread_safe: bool = False, **options: Any) -> None:
            super().__init__(address_of(f"{os.getpid()}/{next(_numbers)}"), **options)
            _stores.add(self)

    class SqliteLightningStore(PostgresLightningStore):
        def __init__(self, path: Any, *, durability: str = "power", **options: Any) -> None:
            super().__init__(address_of(os.path.realpath(path)), **options)

    agl.store.memory.InMemoryLightningStore = InMemoryLightningStore
    agl_sqlite.store.SqliteLightningStore = SqliteLightningStore


def pytest_configure(config: Any) -> None:
    if config.getoption("--store") is None:
        return
    if not hasattr(config, "workerinput"):
        config.add_cleanup(start_server())
    replace_stores()
    config.add_cleanup(lambda: [asyncio.run(store.close()) for store in _stores])


def start_server() -> Callable[[], None]:
    """Start the server of a run of tests, and have its processes find it; what ends it."""
    from agl_postgres.embedded import EmbeddedServer

    folder = Path(tempfile.mkdtemp(prefix="agl-postgres-"))
    server = EmbeddedServer(folder / "server")
    with (folder / "server" / "data" / "postgresql.conf").open("a") as file:
        file.write("max_connections = 1000\nfsync = off\n")
    server.stop()
    server = EmbeddedServer(folder / "server")
    replaces = f"import runpy\nrunpy.run_path({__file__!r})['replace_stores']()\n"
    (folder / "sitecustomize.py").write_text(replaces)
    os.environ[ADDRESS] = server.url
    paths = filter(None, [str(folder), os.environ.get("PYTHONPATH")])
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)

    def end() -> None:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)

    return end


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    if config.getoption("--store") is not None:
        left = [item for item in items if item.get_closest_marker("sqlite")]
        items[:] = [item for item in items if item not in set(left)]
        config.hook.pytest_deselected(items=left)
