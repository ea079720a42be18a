"""The store in this process's memory: SQLite without a file. Nothing survives the process."""

import contextlib
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Generator
from typing import Any, TypeVar, cast

from agl.errors import AglError, InvalidRecordError
from agl.store.answers import Turn
from agl.store.detached import detached, is_json, json_of
from agl.store.sqlite import operations as ops
from agl.store.sqlite.file import MEMORY, failure_of, named, prepare
from agl.store.sqlite.local import LocalLightningStore
from agl.store.sqlite.lookups import SqliteLookups
from agl.store.sqlite.tables import Tables
from agl.store.waiting import Effects
from agl.types import PaginatedResult, Rollout

T = TypeVar("T")

_LOCK = threading.RLock()
"""Of all stores in memory, and held while the process forks: what SQLite has locked at that moment
would stay locked in the child."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
    )


class _MemoryTables(Tables):
    """Tables that also keep, as they are, inputs that JSON would change."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self._inputs: dict[str, Any] = {}
        """Rollout id -> such an input."""
        self._changes: list[tuple[str, Any]] = []
        """Of the current transaction; None for an input that is JSON."""

    def input_json(self, rollout: Rollout, what: str) -> str:
        if is_json(rollout.input):
            self._changes.append((rollout.rollout_id, None))
            return super().input_json(rollout, what)
        self._changes.append((rollout.rollout_id, detached(rollout.input)))
        with contextlib.suppress(InvalidRecordError):
            return super().input_json(rollout, what)
        return json_of(ascii(rollout.input), what)

    def end_transaction(self, *, committed: bool) -> None:
        """Keep the inputs of a transaction, or forget them."""
        for rollout_id, given in self._changes if committed else ():
            self._inputs.pop(rollout_id, None)
            if given is not None:
                self._inputs[rollout_id] = given
        self._changes.clear()

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
        with _LOCK:
            connection = sqlite3.connect(MEMORY, isolation_level=None, check_same_thread=False)
            # Not at the exit of the interpreter, where the watchdog may be using it.
            weakref.finalize(self, connection.close).atexit = False
            connection.execute("PRAGMA synchronous=OFF")
            prepare(connection, MEMORY)
            self._connection, self._tables = connection, _MemoryTables(connection)
        self._num_queued = 0

    async def _write(
        self, operation: Callable[..., T], *args: Any, claimed_of: Any = None, **kwargs: Any
    ) -> T:
        return self._run(operation, *args, **kwargs)  # nothing waits, so no caller is gone

    async def _read(self, lookup: Callable[[SqliteLookups], T]) -> T:
        with _LOCK, _errors("it could not be read"):
            return self._tables.restored(lookup(self._tables))

    def _has_queued(self) -> bool:
        return self._num_queued > 0

    def _scan(self) -> None:
        self._run(ops.expire)

    def _run(self, operation: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run an operation in the caller's thread: there is no disk to wait for."""
        with _LOCK, _errors("nothing of this call was stored"):
            effects = self._tables.effects = Effects()
            if self._connection.in_transaction:  # an interrupt came between two steps of a call
                self._undo()
            num_changes = self._tables.num_changes
            try:
                self._connection.execute("BEGIN")
                result = operation(self._tables, self._clock.now(), *args, **kwargs)
                self._tables.flush()
                self._connection.execute("COMMIT")
                self._tables.end_transaction(committed=True)
                self._num_queued += effects.queued - effects.dequeued
                result = self._tables.restored(result)
            except AglError:
                self._tables.end_transaction(committed=False)
                if self._tables.num_changes != num_changes:
                    self._undo()
                else:
                    self._connection.execute("ROLLBACK")  # refused before anything was changed
                raise
            except BaseException:
                self._undo()
                raise
        self._publish(effects)
        return result

    def _undo(self) -> None:
        self._tables.end_transaction(committed=False)
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self._tables.reload()
        self._num_queued = self._tables.one("num_queued")[0]


@contextlib.contextmanager
def _errors(what: str) -> Generator[None]:
    try:
        yield
    except sqlite3.DataError as error:
        raise named(MEMORY, error) from error
    except sqlite3.Error as error:
        raise failure_of(MEMORY, error, what) from error
    except UnicodeEncodeError as error:
        raise InvalidRecordError(f"store {MEMORY!r}: it keeps no such text: {error}") from error
