"""Writing a store in PostgreSQL: what operations need is read for all of them at once.

The engine's operations ask for one record after the other, and each answer of a server takes a
tenth of a millisecond and more. So a transaction runs its operations several times. What they ask
for and nobody has read yet is noted, an operation that cannot go on without it is stopped
(``Missing``), and when all have run, everything is read in one exchange and they run again
(``Again``). Operations are functions of the tables and of time, and nothing is written before the
last round: so the earlier rounds leave no trace. A hundred operations take two or three exchanges.

What is read of a rollout is locked until the transaction ends; claims pass over what is locked.
"""

import hashlib
import logging
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from typing import Any, Final, NamedTuple

import psycopg

from agl.errors import StoreUnavailableError
from agl.store.waiting import Effects
from agl_postgres.lookups import SQL, Connection, PostgresLookups, ask, storable
from agl_sqlite.ids import number_of
from agl_sqlite.rows import resources_of, rollout_of, stored_attempt_of, worker_of

logger = logging.getLogger("agl.store")

FEW_ROUNDS = 8
"""After so many each thing is read as it is asked for."""
ASK_SECONDS = 30.0
"""So long it is asked whether a transaction was kept whose answer was lost."""
MOST_OVERDUE = 1000
"""So many attempts are looked at in one transaction, and the next ones in the next."""
_FIRST = (float("-inf"), 0)
_WRITTEN: Final = (
    *("insert_rollout", "move_rollout", "edit_rollout", "insert_attempt", "save_attempt"),
    *("insert_span", "save_worker", "save_document", "save_resources"),
)
"""Statements in the order in which a transaction runs them: a record is made, then changed."""
Known = dict[str, dict[Any, Any]]
"""Kind of record -> key -> what a transaction has read of it, or made; see ``_READS``."""
Rows = list[tuple[Any, ...]]


class Missing(Exception):
    """An operation needs what is not read yet."""


class Again(Exception):
    """The operations run once more, as more is read now."""


class Alone(Exception):
    """An operation reads what no other may change meanwhile: it needs a transaction of its own."""


def _take_attempts(known: Known, rows: Rows) -> None:
    for stored in map(stored_attempt_of, rows):
        of_rollout = known["attempts"].get(stored.attempt.rollout_id)
        if of_rollout is not None:
            of_rollout[stored.attempt.attempt_id] = stored


def _take_open(known: Known, rows: Rows) -> None:
    for stored in map(stored_attempt_of, rows):
        known["open"][stored.attempt.worker_id][stored.attempt.attempt_id] = stored


def _take_claims(known: Known, rows: Rows) -> None:
    for key, *made in rows:
        known["claim"][key].append(tuple(made))


def _take(kind: str, record: Callable[[tuple[Any, ...]], Any]) -> Callable[[Known, Rows], None]:
    return lambda known, rows: known[kind].update({row[0]: record(row) for row in rows})


class _Read(NamedTuple):
    """How records of a kind are read."""

    statement: str
    take: Callable[[Known, Rows], None]
    nothing: Callable[[], Any] = lambda: None
    """Makes what stands for no record."""
    value: Callable[[Any], Any] = lambda key: key
    """Of a key, in the array that the statement gets; of a pair there are two arrays."""
    is_locked: bool = False
    """Whether its keys are locked first: what is not there yet can be locked by nothing else."""


_READS: Final = {
    "key": _Read("key", _take("key", lambda row: row[1]), is_locked=True),
    "claim": _Read("claim", _take_claims, list, is_locked=True),
    "rollout": _Read("rollouts", _take("rollout", rollout_of), value=number_of),
    # By a statement of its own: one that had to wait for a lock sees other tables as before.
    "attempts": _Read("attempts", _take_attempts, dict, number_of),
    "worker": _Read("workers", _take("worker", worker_of), is_locked=True),
    "open": _Read("open", _take_open, dict),
    "span": _Read("spans", lambda known, rows: known["span"].update(dict.fromkeys(rows, True))),
    "document": _Read(
        "versions",
        lambda known, rows: known["document"].update({(a, b): version for a, b, version in rows}),
        int,
        is_locked=True,
    ),
    "snapshot": _Read("snapshots", _take("snapshot", resources_of), is_locked=True),
}
"""Kind -> how it is read, in this order."""


class Rounds(PostgresLookups):
    """A transaction that reads ahead, on the writer's connection and in its thread."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        super().__init__(connect())
        self._connect = connect
        self.effects = Effects()
        self.is_alone = False
        self.head = 0
        """Claims begin at this position; before it are rollouts that were claimed."""
        self.num_claims = 1
        """So many rollouts the operations are expected to claim."""
        self._num_committed = self._last = 0
        self._id = uuid.uuid4().hex
        self._lock = lock_number("server", self._id)
        """Held by each transaction: who asks whether it was kept waits for its end."""
        self._looked_until: tuple[float, int] = _FIRST
        """Deadline and number of the last attempt that the watchdog has seen."""
        self._goes_on = False
        """Whether the transaction does, with another round."""
        self._start_over()

    # --- transactions

    def _start_over(self) -> None:
        self._read: Known = {kind: {} for kind in (*_READS, "queue", "overdue", "latest")}
        self._numbers: dict[str, list[int]] = {"rollout": [], "position": [], "attempt": []}
        self._is_whole_queue = False
        self._num_rounds = 0
        self._forget_round()

    def _forget_round(self) -> None:
        self._known: Known = {kind: _copied(of) for kind, of in self._read.items()}
        self._next = dict.fromkeys(self._numbers, 0)
        self._wanted: dict[str, set[Any]] = {}
        self._wants_alone = self._is_incomplete = False
        self._queued_here: set[str] = set()
        """Behind all that others queued."""
        self._unwritten: dict[str, dict[Any, tuple[Any, ...]]] = {name: {} for name in _WRITTEN}
        self._num_unwritten = 0

    @property
    def num_changes(self) -> int:
        """Grows with each change, and not back with a commit."""
        return self._num_committed + self._num_unwritten

    @property
    def is_provisional(self) -> bool:
        """Whether this round lacked something, and so counts for nothing."""
        lacks_numbers = any(self._next[kind] > len(of) for kind, of in self._numbers.items())
        return bool(self._wanted) or self._is_incomplete or self._wants_alone or lacks_numbers

    def begin(self) -> None:
        self._goes_on = False
        self._forget_round()
        if self.is_alone:
            ask(self._connection, SQL["lock"], [[self._lock]])
            self._connection.execute("SAVEPOINT round")

    def commit(self) -> None:
        if self._wants_alone:
            raise Alone
        if self.is_provisional:
            if self.is_alone:  # what it did directly it does once more
                self._connection.execute("ROLLBACK TO SAVEPOINT round")
            self._fetch()
            self._goes_on = True
            self._num_rounds += 1
            raise Again
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
        if self._goes_on:
            return
        self._start_over()
        try:
            self._connection.rollback()
        except psycopg.Error as error:  # the next transaction connects again
            logger.warning("a transaction could not be rolled back: %s", error)

    def reconnect(self) -> None:
        """Begin on a new connection, with nothing under way."""
        self._connection.close()
        self._start_over()
        self._connection = self._connect()

    def _was_kept(self) -> bool:
        """Whether the last transaction was, whose connection was lost: asked on a new one.

        Raises:
            StoreUnavailableError: Nobody answers.
        """
        end = time.monotonic() + ASK_SECONDS
        while time.monotonic() < end:
            with suppress(psycopg.OperationalError):
                changes = self._num_unwritten
                self.reconnect()
                self._num_unwritten = changes
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

    # --- reading ahead

    def _want(self, kind: str, key: Any) -> Any:
        """What is known of a record, None for nothing; what is not known yet will be read."""
        if key not in self._known[kind]:
            self._wanted.setdefault(kind, set()).add(key)
            return None
        return self._known[kind][key]

    def _need(self, kind: str, key: Any) -> Any:
        """The same; the operation cannot go on without it."""
        found = self._want(kind, key)
        if key not in self._known[kind]:
            if self._num_rounds < FEW_ROUNDS or kind not in _READS:
                raise Missing(kind, key)
            # Operations that ask for one thing after the other: it is read at once.
            self._fetch()
            self._wanted, self._is_incomplete = {}, True
            for name in _READS:
                new = self._read[name].keys() - self._known[name].keys()
                self._known[name] |= _copied({one: self._read[name][one] for one in new})
            found = self._known[kind][key]
        return found

    def _fetch(self) -> None:
        """Read what is wanted, all in one exchange."""
        taken: list[tuple[psycopg.Cursor[Any], Callable[[Rows], Any]]] = []

        def send(name: str, take: Callable[[Rows], Any], *values: Any) -> None:
            taken.append((ask(self._connection, SQL[name], values), take))

        wanted = self._wanted
        with self._connection.pipeline():
            self._send_others(send, wanted)
            for kind, how in _READS.items():
                self._read[kind] |= {key: how.nothing() for key in wanted.get(kind, ())}
                if keys := storable(wanted.get(kind, ())):
                    columns = zip(*keys, strict=True) if isinstance(keys[0], tuple) else [keys]
                    values = [list(map(how.value, column)) for column in columns]
                    send(how.statement, lambda rows, take=how.take: take(self._read, rows), *values)
            for kind, numbers in self._numbers.items():
                least = self.num_claims if kind == "attempt" else 0
                if (count := max(self._next[kind], least) - len(numbers)) > 0:
                    send(
                        f"{kind}_numbers", lambda rows, of=numbers: of.extend(first_of(rows)), count
                    )
        for cursor, take in taken:
            take(cursor.fetchall())

    def _send_others(self, send: Callable[..., None], wanted: dict[str, set[Any]]) -> None:
        """Ask for what is read in another way, and lock."""
        locks = [
            lock_number(kind, key)
            for kind, how in _READS.items()
            if how.is_locked
            for key in wanted.get(kind, ())
        ]
        send("lock", lambda rows: None, sorted([self._lock, *locks]))
        if "queue" in wanted:
            held = list(map(number_of, self._read["queue"]))
            wish = max(self.num_claims, len(held))  # twice as many each time
            send("queue", lambda rows: self._take_queue(rows, wish), self.head, held, wish)
        if nows := wanted.get("overdue"):
            send("overdue_since", self._take_overdue, max(nows), *self._looked_until, MOST_OVERDUE)
        if "latest" in wanted:
            latest = self._read["latest"].update
            send("latest_resources_id", lambda rows: latest({None: [*first_of(rows), None][0]}))
        if rollouts := wanted.get("rollout"):
            send("lock_rollouts", lambda rows: None, sorted(map(number_of, rollouts)))

    def _take_overdue(self, rows: Rows) -> None:
        self._read["overdue"][None] = [row[:2] for row in rows]
        self._looked_until = rows[-1][2:] if len(rows) == MOST_OVERDUE else _FIRST

    def _take_queue(self, rows: Rows, wish: int) -> None:
        for rollout in map(rollout_of, rows):
            self._read["queue"][rollout.rollout_id] = None
            self._read["rollout"][rollout.rollout_id] = rollout
            if rollout.status == "queuing":
                self._read["attempts"][rollout.rollout_id] = {}
        self._is_whole_queue = len(rows) < wish


def _copied(records: dict[Any, Any]) -> dict[Any, Any]:
    """Also what holds several; records themselves are never changed."""
    return {key: copy(x) if isinstance(x, dict | list) else x for key, x in records.items()}


def first_of(rows: Rows) -> list[Any]:
    """The first column."""
    return [row[0] for row in rows]


def lock_number(*key: Any) -> int:
    """What stands for a record in an advisory lock."""
    digest = hashlib.blake2b(repr(key).encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)
