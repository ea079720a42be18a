"""The store in one SQLite file: what it acknowledged survives ``kill -9``."""

import os
import sqlite3
from collections.abc import Callable
from typing import Literal, TypeVar

from agl.errors import ConfigError, StoreUnavailableError
from agl_sqlite.database import SqliteDatabase
from agl_sqlite.database_store import DatabaseStore
from agl_sqlite.file import SCHEMA_VERSION
from agl_sqlite.tables import SqliteTables

T = TypeVar("T")


class SqliteLightningStore(DatabaseStore[SqliteDatabase]):
    """Keeps everything in one file, which one process owns at a time.

    Other processes reach it through ``LightningStoreServer``. The file can be read by any SQLite
    tool; its tables are those of ``schema.sql``.

    Args:
        path: The file, made when it is not there. When it is deleted or replaced while the store is
            open, nothing more is stored.
        durability: ``power``: what was acknowledged survives a power failure too (each commit is
            synced to the disk). ``process``: it survives the end of the process, however that ends,
            and a power failure may cost the newest part; about twice as fast.
        scan_interval_seconds: How often attempts are checked against ``timeout_seconds`` and
            ``unresponsive_seconds``.

    A call that fails because the disk is full, or fails itself, is made again for a minute (a
    server answers 503 at once, and its clients ask again for about as long); then it raises a
    ``StoreDiskError``.

    Raises:
        StoreUnavailableError: The file cannot be opened as a store; it is left as it was.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Literal["power", "process"] = "power",
        scan_interval_seconds: float = 1.0,
    ) -> None:
        self.path = os.fspath(path)
        if durability not in ("power", "process"):
            raise ConfigError(
                f"SqliteLightningStore: durability {durability!r}; expected 'power' or 'process'"
            )
        if self.path == ":memory:":
            raise ConfigError(
                "SqliteLightningStore: path ':memory:'; expected the path of a file. "
                "For a store without one use agl.InMemoryLightningStore"
            )
        if sqlite3.sqlite_version_info < (3, 37):
            raise StoreUnavailableError(
                f"SqliteLightningStore needs SQLite 3.37 or newer; this Python has "
                f"{sqlite3.sqlite_version}. Use a newer Python"
            )
        synchronous = "FULL" if durability == "power" else "NORMAL"
        super().__init__(
            lambda: SqliteDatabase(self.path, synchronous),
            scan_interval_seconds=scan_interval_seconds,
        )
        if self._database.has_deadlines:
            self._watchdog.start()

    async def check_health(self) -> None:
        await super().check_health()
        self._database.check()

    async def restore(self, operation: Callable[[SqliteTables, float], T]) -> T:
        """Put what another file held into the tables as it was; open the store anew afterwards."""
        return await self._write(operation)

    def _write_something(self, tables: SqliteTables, now: float) -> None:
        tables.connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")

    def _has_queued(self) -> bool:
        return self._database.tables.num_queued > 0

    def _has_nothing_for(self, worker_id: str | None, key: str | None) -> bool:
        return self._database.tables.has_nothing_for(worker_id, key)
