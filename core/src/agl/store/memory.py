"""The store in this process's memory: SQLite without a file. Nothing survives the process."""

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

from agl.errors import InvalidRecordError
from agl.store.answers import Turn
from agl.store.sqlite import operations as ops
from agl.store.sqlite.detached import detached, is_json
from agl.store.sqlite.effects import Effects
from agl.store.sqlite.file import MEMORY, failure_of, named, prepare
from agl.store.sqlite.local import LocalLightningStore
from agl.store.sqlite.lookups import SqliteLookups
from agl.store.sqlite.rows import json_of
from agl.store.sqlite.tables import Tables
from agl.types import PaginatedResult, Rollout

T = TypeVar("T")


class _MemoryTables(Tables):
    """Tables that also keep, as they are, inputs that JSON would change."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self._inputs: dict[str, Any] = {}
        """Rollout id -> such an input."""

    def input_json(self, rollout: Rollout, what: str) -> str:
        self._inputs.pop(rollout.rollout_id, None)
        if is_json(rollout.input):
            return super().input_json(rollout, what)
        self._inputs[rollout.rollout_id] = detached(rollout.input)
        with contextlib.suppress(InvalidRecordError):
            return super().input_json(rollout, what)
        return json_of(ascii(rollout.input), what)

    def own(self, rollout: Rollout) -> Rollout:
        # The input is restored when it is handed out.
        return super().own(rollout.changed(input=None)).changed(input=detached(rollout.input))

    def restored(self, answer: Any) -> Any:
        """What an operation or a lookup answers, with inputs as they were given."""
        if not self._inputs:
            return answer
        match answer:
            case Rollout() if answer.rollout_id in self._inputs:
                return answer.changed(input=detached(self._inputs[answer.rollout_id]))
            case Turn():
                return answer._replace(claimed=self.restored(answer.claimed))
            case PaginatedResult():
                page = cast("PaginatedResult[Any]", answer)
                return page.model_copy(update={"items": self.restored(page.items)})
            case list():
                return [self.restored(one) for one in cast(list[Any], answer)]
            case _:
                return answer


class InMemoryLightningStore(LocalLightningStore):
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
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(MEMORY, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA synchronous=OFF")
        prepare(self._connection, MEMORY)
        self._tables = _MemoryTables(self._connection)
        self._num_queued = 0

    async def _write(
        self, operation: Callable[..., T], *args: Any, claimed_of: Any = None, **kwargs: Any
    ) -> T:
        return self._run(operation, *args, **kwargs)  # nothing waits, so no caller is gone

    async def _read(self, lookup: Callable[[SqliteLookups], T]) -> T:
        try:
            with self._lock:
                return self._tables.restored(lookup(self._tables))
        except sqlite3.Error as error:
            raise failure_of(MEMORY, error, "it could not be read") from error

    def _has_queued(self) -> bool:
        return self._num_queued > 0

    def _scan(self) -> None:
        self._run(ops.expire)

    def _run(self, operation: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run an operation in the caller's thread: there is no disk to wait for."""
        with self._lock:
            effects = self._tables.effects = Effects()
            self._connection.execute("BEGIN")
            try:
                result = operation(self._tables, self._clock.now(), *args, **kwargs)
                self._tables.flush()
                self._connection.execute("COMMIT")
            except BaseException as error:
                self._connection.execute("ROLLBACK")
                self._tables.reload()
                if isinstance(error, sqlite3.Error):
                    raise named(MEMORY, error) from error
                raise
            result = self._tables.restored(result)
            self._num_queued += effects.queued - effects.dequeued
        self._publish(effects)
        return result
