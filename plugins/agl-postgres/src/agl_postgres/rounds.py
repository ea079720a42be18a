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
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus

from agl.errors import StoreAwayError
from agl.store.engine.tables import StoredAttempt
from agl.store.memory_tables import AttemptRow, MemoryTables
from agl.types import Rollout
from agl_postgres.lookups import SQL, Connection, PostgresLookups, ask, batched, storable
from agl_sqlite.ids import number_of
from agl_sqlite.row_buffer import RowBuffer
from agl_sqlite.rows import ROLLOUT_FIELDS, rollout_of, stored_attempt_of

FEW_ROUNDS = 8  # after these each thing is read as it is asked for
ASK_SECONDS = 30.0  # so long it is asked whether a transaction was kept whose answer was lost
_LOCKED = ("rollout_id_of_key", "attempts_of_key", "worker", "document_version", "resources")
"""Statements whose values are locked first: what is not there yet can be locked by nothing else."""
FIRST: Final = (float("-inf"), 0)
_BEFORE: Final = -(1 << 128)
"""In memory, records that were read are numbered from here on, before all that are made."""
_NUM_FIELDS: Final = len(ROLLOUT_FIELDS)
Key = tuple[Any, ...]  # the name of a statement, and its values
Rows = list[tuple[Any, ...]]


class Missing(Exception):
    """An operation needs what is not read yet, or a transaction of its own."""


class Rounds(RowBuffer, PostgresLookups):
    """A transaction that reads ahead, on the writer's connection and in its thread."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        super().__init__()
        self._connect, self._connection = connect, connect()
        self.head = 0
        """Claims begin at this position; before it are rollouts that were claimed."""
        self.num_operations = 1  # rollouts that they are expected to claim
        self._num_committed = self._last = 0
        self._id = uuid.uuid4().hex
        self._lock = lock_number("server", self._id)
        """Held by each transaction: who asks whether it was kept waits for its end."""
        self._looked_until: tuple[float, int] = FIRST
        """Deadline and number of the last attempt that the watchdog has seen."""
        self._start_over()

    # --- transactions

    def _start_over(self) -> None:
        self.memory = MemoryTables()
        self._found: dict[Key, Rows] = {}
        self._overdue: Key | None = None
        self._queue: Key = ()
        """What the next rollouts of the queue are read by."""
        self.num_rounds = 0

    def begin(self) -> None:
        if self._connection.closed:
            self._connection = self._connect()
        if not self.num_rounds:
            self._queue = "queue", self.head, self.num_operations
        self.memory.roll_back()
        self._next = Counter[str]()
        """Sequence -> numbers that were taken of it."""
        self.wanted: dict[Key, None] = {}
        """What this round lacks: so it counts for nothing."""
        self._is_direct = False
        self.forget_rows()
        self._num_kept = self._num_committed

    def commit(self) -> None:
        """Keep what was written; after a round that lacked something, read that."""
        if self.wanted:
            if self._is_direct:  # what it did directly it does once more
                self._connection.execute("ROLLBACK TO SAVEPOINT round")
            self._fetch()
            self.num_rounds += 1
            return
        if self._num_kept == self._num_committed:
            self.roll_back()
            return
        self._last += 1
        try:
            with self._connection.pipeline():
                self._begin()
                self.flush()
                ask(self._connection, SQL["keep"], [self._id, self._last, self._id, self._last])
                self._connection.execute("COMMIT")
        except psycopg.OperationalError as error:
            # Its answer may be lost, and only that. Who was told that it failed asks again.
            is_refused = error.sqlstate is not None and not error.sqlstate.startswith("57")
            if is_refused or not self._was_kept():
                raise
        self._num_committed = self._num_kept
        self._start_over()

    def roll_back(self) -> None:
        self._start_over()
        try:
            self._connection.rollback()
        except psycopg.Error:  # the next transaction connects again
            self._connection.close()

    def _was_kept(self) -> bool:
        """Whether the last transaction was, whose connection was lost: asked on a new one.

        Raises:
            StoreAwayError: Nobody answers.
        """
        end = time.monotonic() + ASK_SECONDS
        while time.monotonic() < end:
            with suppress(psycopg.OperationalError):
                self._connection.close()
                self._connection = self._connect()
                ask(self._connection, SQL["lock"], [[self._lock]])
                kept = ask(self._connection, SQL["kept"], [self._id, self._last])
                return kept.fetchone() is not None
            time.sleep(0.1)
        raise StoreAwayError(
            f"PostgreSQL has not answered for {ASK_SECONDS:g} seconds: whether this call was "
            "stored is not known. Look before you repeat it"
        )

    def _begin(self) -> None:
        """As psycopg would, which waits for PostgreSQL once more to begin and to commit."""
        if self._connection.info.transaction_status == TransactionStatus.IDLE:
            self._connection.execute("BEGIN")

    def _hold(self, locks: list[int]) -> None:
        """Lock records to the end of the transaction; in the place of very many, all of them."""
        self._begin()
        if len(locks) > 4096:  # PostgreSQL keeps the first 15,000 or so in memory, of all servers
            self._connection.execute("LOCK TABLE rollout, attempt, document, resources, worker")
            locks = []
        ask(self._connection, SQL["lock"], [sorted([self._lock, *locks])])

    def touch(self) -> None:
        """Have the transaction write, though nothing changed."""
        self._num_kept += 1

    def _write_rows(self, sql: str, rows: Collection[tuple[Any, ...]]) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(sql.replace("?", "%s").encode(), rows)

    def _directly(self) -> None:
        """Let a statement see what is written, for an operation that is alone."""
        if self.num_operations > 1:
            raise Missing
        if not self._is_direct:
            self._is_direct = True
            self._hold([])
            self._connection.execute("SAVEPOINT round")
        self.flush()

    # --- reading ahead

    def _want(self, *key: Any) -> Rows:
        """What a statement finds; nothing if it is not read yet, and then it will be."""
        if key not in self._found:
            self.wanted[key] = None
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
        if self._queue in self.wanted:
            self.wanted |= {("number", "attempts", 1 + n): None for n in range(self.num_operations)}
        unread = [key for key in self.wanted if key not in self._found]
        self._found |= {key: [] for key in unread}
        wanted: dict[str, list[Key]] = {}
        for name, *values in storable(unread):
            wanted.setdefault(name, []).append(tuple(values))
        locks = [lock_number(name, one) for name in _LOCKED for one in wanted.get(name, ())]
        cursors: dict[str, psycopg.Cursor[Any]] = {}
        with self._connection.pipeline():
            self._hold(locks)
            if numbers := sorted(number for (number,) in wanted.get("rollouts", ())):
                ask(self._connection, SQL["lock_rollouts"], [numbers])
            for name, keys in wanted.items():
                columns = [list(range(len(keys))), *map(list, zip(*keys, strict=True))]
                sql = batched(name, tuple(map(type, keys[0])))
                cursors[name] = ask(self._connection, sql, columns)
        for name, cursor in cursors.items():
            for number, *row in cursor.fetchall():
                self._found[name, *wanted[name][number]].append(tuple(row))
                if name in ("rollouts", "queue"):
                    self._take_rollout(rollout_of(row[:_NUM_FIELDS]), *row[_NUM_FIELDS:])
                elif name.startswith("attempts_of"):
                    self._take_attempt(stored_attempt_of(row[:-1]), row[-1])
        if rows := self._found.get(self._queue):
            *_, wish = self._queue
            self._queue = "queue", rows[-1][-1] + 1, 2 * wish
            if len(rows) < wish:
                self._found[self._queue] = []

    def _take_rollout(self, rollout: Rollout, position: int | None = None) -> None:
        number = number_of(rollout.rollout_id)
        self.memory.rollouts.put(rollout.rollout_id, (_BEFORE + number, rollout))
        if position is not None:
            self.memory.queue.put(rollout.rollout_id, (_BEFORE + position, rollout))
            self._found["rollouts", number] = []
            if rollout.status == "queuing":
                self._found["attempts_of_rollout", number] = []

    def _take_attempt(self, stored: StoredAttempt, key: str | None) -> None:
        rollout_id, attempt_id = stored.attempt.rollout_id, stored.attempt.attempt_id
        place = _BEFORE + (stored.attempt.sequence_id << 64) + number_of(attempt_id)
        row = AttemptRow(attempt_id, rollout_id, stored, None, key)
        self.memory.attempts.put(attempt_id, (place, row))


def lock_number(*key: Any) -> int:
    """What stands for a record in an advisory lock."""
    digest = hashlib.blake2b(repr(key).encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)
