"""Writing a store in PostgreSQL: what operations need is read for all of them at once.

The engine's operations ask for one record after the other, and each answer of a server takes a
tenth of a millisecond and more. So a transaction runs its operations several times. What they ask
for and nobody has read yet is noted, an operation that cannot go on without it is stopped
(``Missing``), and when all have run, everything is read in one exchange and they run again.
Operations are functions of the tables and of time, and nothing is written before the last round: so
the earlier rounds leave no trace. A hundred operations take two or three exchanges.

What is read of a rollout is locked until the transaction ends; claims pass over what is locked.
What was read, and what operations made of it, are tables in memory (``MemoryTables``).
"""

import hashlib
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import psycopg

from agl.errors import StoreUnavailableError
from agl.store.engine.tables import StoredAttempt
from agl.store.memory_tables import AttemptRow, MemoryTables
from agl.store.waiting import Effects
from agl.types import Rollout
from agl_postgres.lookups import SQL, Connection, PostgresLookups, ask, batched, storable
from agl_sqlite.ids import number_of
from agl_sqlite.rows import rollout_of, stored_attempt_of

logger = logging.getLogger("agl.store")

FEW_ROUNDS = 8
"""After so many each thing is read as it is asked for."""
ASK_SECONDS = 30.0
"""So long it is asked whether a transaction was kept whose answer was lost."""
_WRITTEN: Final = (
    *("insert_rollout", "move_rollout", "edit_rollout", "insert_attempt", "save_attempt"),
    *("insert_span", "save_worker", "save_document", "save_resources"),
)
"""Statements in the order in which a transaction runs them: a record is made, then changed."""
_LOCKED: Final = (
    *("rollout_id_of_key", "attempts_of_key", "worker", "document_version", "resources"),
)
"""Statements whose values are locked first: what is not there yet can be locked by nothing else."""
_BEFORE: Final = -(1 << 128)
"""In memory, records that were read are numbered from here on, before all that are made."""
Key = tuple[Any, ...]
"""The name of a statement, and its values."""
Rows = list[tuple[Any, ...]]


class Missing(Exception):
    """An operation needs what is not read yet."""


class Alone(Exception):
    """An operation reads what no other may change meanwhile: it needs a transaction of its own."""


class Rounds(PostgresLookups):
    """A transaction that reads ahead, on the writer's connection and in its thread."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        super().__init__(connect())
        self._connect = connect
        self.effects = Effects()
        self.head = 0
        """Claims begin at this position; before it are rollouts that were claimed."""
        self.num_operations = 1
        """So many rollouts they are expected to claim."""
        self._num_committed = self._last = 0
        self._id = uuid.uuid4().hex
        self._lock = lock_number("server", self._id)
        """Held by each transaction: who asks whether it was kept waits for its end."""
        self._start_over()

    # --- transactions

    def _start_over(self) -> None:
        self.memory = MemoryTables()
        self._found: dict[Key, Rows] = {}
        self._overdue: Key | None = None
        self._queue: Key = ()
        """What the next rollouts of the queue are read by."""
        self._is_whole_queue = False
        self.num_rounds = 0
        self._forget_round()

    def _forget_round(self) -> None:
        self.memory.roll_back()
        self._next = Counter[str]()
        """Sequence -> numbers that were taken of it."""
        self._wanted: dict[Key, None] = {}
        self._is_incomplete = self._is_direct = False
        self._unwritten: dict[str, dict[Any, tuple[Any, ...]]] = {name: {} for name in _WRITTEN}
        self._num_unwritten = 0

    @property
    def num_changes(self) -> int:
        """Grows with each change, and not back with a commit."""
        return self._num_committed + self._num_unwritten

    @property
    def is_provisional(self) -> bool:
        """Whether this round lacked something, and so counts for nothing."""
        return bool(self._wanted) or self._is_incomplete

    def begin(self) -> None:
        self._forget_round()
        if not self.num_rounds:
            self._queue = "queue", self.head, self.num_operations

    def commit(self) -> None:
        """Keep what was written; after a round that lacked something, read that."""
        if self.is_provisional:
            if self._is_direct:  # what it did directly it does once more
                self._connection.execute("ROLLBACK TO SAVEPOINT round")
            self.memory.roll_back()
            self._fetch()
            self.num_rounds += 1
            return
        if not self._num_unwritten:
            self.roll_back()
            return
        self._last += 1
        try:
            with self._connection.pipeline():
                self._flush()
                ask(self._connection, SQL["keep"], [self._id, self._last, self._id, self._last])
                self._connection.commit()
        except psycopg.OperationalError as error:
            # Its answer may be lost, and only that. Who was told that it failed asks again.
            is_refused = error.sqlstate is not None and not error.sqlstate.startswith("57")
            if is_refused or not self._was_kept():
                raise
        self._num_committed += self._num_unwritten
        self._start_over()

    def roll_back(self) -> None:
        self._start_over()
        try:
            self._connection.rollback()
        except psycopg.Error as error:  # the next transaction connects again
            logger.warning("a transaction could not be rolled back: %s", error)

    def reconnect(self) -> None:
        """Go on with a new connection."""
        self._connection.close()
        self._connection = self._connect()

    def _was_kept(self) -> bool:
        """Whether the last transaction was, whose connection was lost: asked on a new one.

        Raises:
            StoreUnavailableError: Nobody answers.
        """
        end = time.monotonic() + ASK_SECONDS
        while time.monotonic() < end:
            with suppress(psycopg.OperationalError):
                self.reconnect()
                ask(self._connection, SQL["lock"], [[self._lock]])
                row = ask(self._connection, SQL["kept"], [self._id, self._last]).fetchone()
                self._connection.rollback()
                return row is not None
            time.sleep(0.1)
        raise StoreUnavailableError(
            f"PostgreSQL has not answered for {ASK_SECONDS:g} seconds: whether this call was "
            "stored is not known. Look before you repeat it"
        )

    def touch(self) -> None:
        """Have the transaction write, though nothing changed."""
        self._num_unwritten += 1

    def _keep(self, statement: str, key: Any, row: tuple[Any, ...]) -> None:
        self._unwritten[statement][key] = row
        self._num_unwritten += 1

    def _flush(self) -> None:
        with self._connection.cursor() as cursor:
            for name, rows in self._unwritten.items():
                if rows:
                    cursor.executemany(SQL[name].replace("?", "%s").encode(), rows.values())
                    rows.clear()

    def _directly(self) -> None:
        """Let a statement see what is written, for an operation that is alone."""
        if self.num_operations > 1:
            raise Alone
        if not self._is_direct:
            self._is_direct = True
            ask(self._connection, SQL["lock"], [[self._lock]])
            self._connection.execute("SAVEPOINT round")
        self._flush()

    # --- reading ahead

    def _want(self, *key: Any) -> Rows:
        """What a statement finds; nothing if it is not read yet, and then it will be."""
        if key not in self._found:
            self._wanted[key] = None
        return self._found.get(key, [])

    def _need(self, *key: Any) -> Rows:
        """The same; the operation cannot go on without it."""
        self._want(*key)
        if key not in self._found:
            if self.num_rounds < FEW_ROUNDS:
                raise Missing(key)
            self._fetch()  # for operations that ask for one thing after the other
        return self._found[key]

    def _fetch(self) -> None:
        """Read what is wanted, all in one exchange."""
        if self._queue in self._wanted:
            numbers = range(1, self.num_operations + 1)
            self._wanted |= {("number", "attempts", number): None for number in numbers}
        unread = [key for key in self._wanted if key not in self._found]
        self._found |= {key: [] for key in unread}
        self._wanted, self._is_incomplete = {}, True
        wanted: dict[str, list[Key]] = {}
        for name, *values in storable(unread):
            wanted.setdefault(name, []).append(tuple(values))
        locks = [lock_number(name, one) for name in _LOCKED for one in wanted.get(name, ())]
        cursors: dict[str, psycopg.Cursor[Any]] = {}
        with self._connection.pipeline():
            ask(self._connection, SQL["lock"], [sorted([self._lock, *locks])])
            numbers = sorted(number for (number,) in wanted.get("rollouts", ()))
            ask(self._connection, SQL["lock_rollouts"], [numbers])
            for name, keys in wanted.items():
                columns = [list(range(len(keys))), *map(list, zip(*keys, strict=True))]
                sql = batched(name, tuple(map(type, keys[0])))
                cursors[name] = ask(self._connection, sql, columns)
        for name, cursor in cursors.items():
            for number, *row in cursor.fetchall():
                self._found[name, *wanted[name][number]].append(tuple(row))
                if name == "rollouts":
                    self._take_rollout(rollout_of(row))
                elif name.startswith("attempts_of"):
                    self._take_attempt(stored_attempt_of(row[:-1]), row[-1])
            if name == "queue":
                self._take_queue(self._found[self._queue])

    def _take_rollout(self, rollout: Rollout) -> None:
        place = _BEFORE + number_of(rollout.rollout_id)
        self.memory.rollouts.put(rollout.rollout_id, (place, rollout))

    def _take_attempt(self, stored: StoredAttempt, key: str | None) -> None:
        rollout_id, attempt_id = stored.attempt.rollout_id, stored.attempt.attempt_id
        place = _BEFORE + (stored.attempt.sequence_id << 64) + number_of(attempt_id)
        row = AttemptRow(attempt_id, rollout_id, stored, None, key)
        self.memory.attempts.put(attempt_id, (place, row))

    def _take_queue(self, rows: Rows) -> None:
        for *row, position in rows:
            rollout = rollout_of(row)
            number = number_of(rollout.rollout_id)
            self._take_rollout(rollout)
            self.memory.queue.put(rollout.rollout_id, (_BEFORE + position, rollout))
            self._found["rollouts", number] = [tuple(row)]
            if rollout.status == "queuing":
                self._found["attempts_of_rollout", number] = []
        *_, wish = self._queue
        self._is_whole_queue = len(rows) < wish
        if not self._is_whole_queue:
            self._queue = "queue", rows[-1][-1] + 1, 2 * wish


def lock_number(*key: Any) -> int:
    """What stands for a record in an advisory lock."""
    digest = hashlib.blake2b(repr(key).encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)
