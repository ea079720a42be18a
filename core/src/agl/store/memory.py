"""The store in this process's memory: SQLite without a file. Nothing survives the process."""

import contextlib
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Generator
from typing import Any, TypeVar, cast

from agl.errors import InvalidRecordError
from agl.store.answers import Turn
from agl.store.engine import operations as ops
from agl.store.sqlite.file import MEMORY, failure_of, named, prepare
from agl.store.sqlite.json_answers import JsonAnswers
from agl.store.sqlite.tables import SqliteTables
from agl.types import PaginatedResult, Rollout
from agl.utils.json_values import copy_of, is_json, json_of

T = TypeVar("T")

_LOCK = threading.RLock()
"""Of all stores in memory, and held while the process forks: what SQLite has locked at that moment
would stay locked in the child."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
    )


class _MemoryTables(SqliteTables):
    """Tables that also keep, as they are, inputs that JSON would change."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self._inputs: dict[str, Any] = {}
        """Rollout id -> such an input."""
        self._changes: list[tuple[str, Any]] = []
        """Of the current transaction; None for an input that is JSON."""

    def input_json(self, rollout: Rollout, what: str) -> str:
        if is_json(rollout.input):
            return super().input_json(rollout, what)
        with contextlib.suppress(InvalidRecordError):
            return super().input_json(rollout, what)
        return json_of(ascii(rollout.input), what)

    def insert_rollout(self, rollout: Rollout, key: str | None = None) -> None:
        super().insert_rollout(rollout, key)
        self._note_input(rollout)

    def edit_rollout(self, rollout: Rollout) -> None:
        super().edit_rollout(rollout)
        self._note_input(rollout)

    def _note_input(self, rollout: Rollout) -> None:
        given = None if is_json(rollout.input) else copy_of(rollout.input)
        self._changes.append((rollout.rollout_id, given))

    def commit(self) -> None:
        super().commit()
        for rollout_id, given in self._changes:
            self._inputs.pop(rollout_id, None)
            if given is not None:
                self._inputs[rollout_id] = given
        self._changes.clear()

    def roll_back(self) -> None:
        self._changes.clear()
        super().roll_back()

    def own(self, rollout: Rollout) -> Rollout:
        # The input is restored when it is handed out.
        return super().own(rollout.changed(input=None)).changed(input=copy_of(rollout.input))

    def restored(self, answer: Any) -> Any:
        """What an operation or a lookup answers, with inputs as they were given."""
        if not self._inputs:
            return answer
        match answer:
            case Rollout() if answer.rollout_id in self._inputs:
                return answer.changed(input=copy_of(self._inputs[answer.rollout_id]))
            case Turn():
                return answer._replace(claimed=self.restored(answer.claimed))
            case PaginatedResult():
                page = cast("PaginatedResult[Any]", answer)
                return page.model_copy(update={"items": self.restored(page.items)})
            case list():
                return [self.restored(one) for one in cast(list[Any], answer)]
            case _:
                return answer


class InMemoryLightningStore(JsonAnswers):
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
            self._tables = _MemoryTables(connection)

    async def _write(
        self, operation: Callable[[_MemoryTables, float], T], claimed_of: object = None
    ) -> T:
        return self._run(operation)  # nothing waits, so no caller is gone

    async def _read(self, lookup: Callable[[_MemoryTables], T]) -> T:
        with _LOCK, _errors("it could not be read"):
            return self._tables.restored(lookup(self._tables))

    def _has_queued(self) -> bool:
        with _LOCK:
            return self._tables.first_queued() is not None

    def _scan(self) -> None:
        self._run(ops.expire)

    def _run(self, operation: Callable[[_MemoryTables, float], T]) -> T:
        """Run an operation in the caller's thread: there is no disk to wait for."""
        with _LOCK, _errors("nothing of this call was stored"):
            (outcome,), effects = ops.run_all(self._tables, [operation], self._clock.now)
            result = self._tables.restored(outcome.result)
        if outcome.error is not None:
            raise outcome.error
        self._publish(effects)
        return result


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
