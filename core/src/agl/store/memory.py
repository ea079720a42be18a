"""The store in the memory of its process. Nothing survives the process.

It shows the two parts of a store over the engine: this one says how an operation runs over tables,
and ``MemoryTables`` keep and find the records. What an operation does is in ``engine``.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

from agl.store.engine import operations
from agl.store.engine.store import EngineStore
from agl.store.engine.tables import Lookups, Tables
from agl.store.memory_tables import MemoryTables

T = TypeVar("T")


class InMemoryLightningStore(EngineStore):
    """Keeps everything in memory, and forgets nothing while it lives.

    In this process an input may be any object; who reads it over HTTP gets what JSON makes of it.
    Safe to use from any thread and any event loop, whatever ``thread_safe`` says.

    Args:
        thread_safe: Accepted because scripts for 0.3 give it; the store always is.
        scan_interval_seconds: How often attempts are checked against ``timeout_seconds`` and
            ``unresponsive_seconds``.
    """

    def __init__(self, *, thread_safe: bool = False, scan_interval_seconds: float = 1.0) -> None:
        super().__init__(scan_interval_seconds=scan_interval_seconds)
        self._tables = MemoryTables()
        self._lock = threading.Lock()

    async def _write(self, operation: Callable[[Tables, float], T], claimed_of: object = None) -> T:
        return self._run(operation)  # nothing is awaited, so no caller is gone

    def _run(self, operation: Callable[[Tables, float], T]) -> T:
        self._check_process()
        with self._lock:
            [outcome], effects = operations.run_all(self._tables, [operation], self._clock.now)
        if outcome.error is not None:
            raise outcome.error
        self._publish(effects)
        return outcome.result

    async def _read(self, lookup: Callable[[Lookups], T]) -> T:
        self._check_process()
        with self._lock:
            return lookup(self._tables)

    def _scan(self) -> None:
        self._run(operations.expire)

    def _has_queued(self) -> bool:
        return bool(self._tables.queue.rows)
