"""A database of PostgreSQL that several processes write: its connections, and what fails there."""

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from agl.errors import (
    AglError,
    ConfigError,
    InvalidRecordError,
    StoreAwayError,
    StoreDiskError,
    StoreError,
    StoreUnavailableError,
)
from agl.store.engine.operations import Outcome, run_all
from agl.store.waiting import Effects
from agl.store.watchdog import StoreClock
from agl_postgres.embedded import EmbeddedServer
from agl_postgres.lookups import Connection, PostgresLookups
from agl_postgres.rounds import lock_number
from agl_postgres.tables import PostgresTables

T = TypeVar("T")
SCHEMA_VERSION = 3
"""Of ``schema.sql``. Before 1.0 a database of another version is refused, not migrated."""
_MOST_ROUNDS, _MOST_TRIES = 100, 5
_CONNECT: Any = {
    **{"application_name": "agl store", "target_session_attrs": "read-write"},
    **{"connect_timeout": 10, "tcp_user_timeout": 15_000},
    **{"keepalives_idle": 10, "keepalives_interval": 3, "keepalives_count": 3},
}
_COLLIDED = (errors.UniqueViolation, errors.DeadlockDetected, errors.LockNotAvailable)
"""Another server was faster: what the operations find is another now."""
_REFUSED = (psycopg.DataError, ValueError, errors.ProgramLimitExceeded)
"""What the caller gave, and no try mends."""


class PostgresDatabase:
    """The tables of a store in a database.

    Args:
        url: ``postgresql://user:password@host:port/name``, or what else libpq takes; or a server,
            which ends with the database.
        read_only: Make no tables, and take a server that cannot be written.

    Raises:
        StoreUnavailableError: It cannot be reached, or holds no store of this version.
    """

    def __init__(self, url: str | EmbeddedServer, *, read_only: bool = False) -> None:
        self._server = None if isinstance(url, str) else url
        try:
            address = conninfo_to_dict(url if isinstance(url, str) else url.url)
        except psycopg.ProgrammingError:  # which says parts of it, perhaps of the password
            wanted = "postgresql://user@host:port/name, after user :password, %20 for a space, etc."
            raise ConfigError(f"store: no address of PostgreSQL. Expected {wanted}") from None
        of_reader = {"target_session_attrs": "any"} if read_only else {}
        self._address: Any = {**_CONNECT, **of_reader, **address}
        self.path = public_address(address) if isinstance(url, str) else str(url.folder)
        self._now = StoreClock().now  # as the store that opens it
        self.readers = ThreadPoolExecutor(2, thread_name_prefix="agl-store-reader")
        self._lookups = threading.local()
        self._connections: set[Connection] = set()
        try:
            self._prepare(read_only)
            self.tables = PostgresTables(self._connect_to_write)
        except BaseException as error:
            self.close()
            if not isinstance(error, psycopg.Error):
                raise
            raise StoreAwayError(
                f"store {self.path!r}: {said(error)}. Check that the server runs, and the address"
            ) from error

    def connect(self, **options: Any) -> Connection:
        """A connection, closed with the database."""
        connection = psycopg.connect(**self._address, **options)
        # Other threads do the same: each of these is one step for them.
        self._connections.difference_update([one for one in [*self._connections] if one.closed])
        self._connections.add(connection)
        return connection

    def _connect_to_write(self) -> Connection:
        # A server that is frozen, or cut off, must not hold up the others.
        connection = self.connect(autocommit=True)
        connection.execute("SET lock_timeout='10s'; SET idle_in_transaction_session_timeout='10s'")
        connection.execute("SET plan_cache_mode = force_generic_plan")  # else each list has its own
        sql = "SELECT extract(epoch FROM clock_timestamp())::float8"
        self.clock_offset_seconds: float = connection.execute(sql).fetchall()[0][0] - self._now()
        """What the clock of the database has more than this machine's: all servers go by it."""
        return connection

    def _prepare(self, read_only: bool) -> None:
        """Make the tables, or check what they are."""
        with psycopg.connect(**self._address) as connection:
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [lock_number("tables")])
            if connection.execute("SELECT to_regclass('agl_version')").fetchone() == (None,):
                if read_only:
                    raise StoreUnavailableError(f"store {self.path!r}: no store is there")
                connection.execute(_schema().encode())
            found = connection.execute("SELECT version FROM agl_version").fetchone()
        if found != (SCHEMA_VERSION,):
            raise StoreUnavailableError(
                f"store {self.path!r}: made by another agl (schema {found and found[0]}, and this "
                f"one has {SCHEMA_VERSION}); it was left as it is. Give another database"
            )

    # --- writing

    def run(
        self, operations: Sequence[Callable[[Any, float], Any]], now: Callable[[], float]
    ) -> tuple[list[Outcome], Effects]:
        """Run operations in one transaction; see ``run_all``, and ``rounds``."""
        guarded = [_guarded(operation) for operation in operations]
        self.tables.num_operations = len(operations)
        tries = 0
        for _ in range(_MOST_ROUNDS):
            try:
                done = run_all(self.tables, guarded, lambda: now() + self.clock_offset_seconds)
                if not self.tables.num_rounds:  # else another one follows
                    return done
            except _COLLIDED:
                tries += 1
                if tries == _MOST_TRIES:
                    raise
        self.tables.roll_back()
        raise StoreError(f"store {self.path!r}: operations that need {_MOST_ROUNDS} rounds")

    def named(self, error: Exception, what: str) -> Exception:
        """An error of an operation in our words: PostgreSQL's, or one of JSON."""
        if isinstance(error, AglError) or not isinstance(error, psycopg.Error | ValueError):
            return error
        kind, advice = StoreError, "Look into the log of PostgreSQL"
        if isinstance(error, _REFUSED):
            kind = InvalidRecordError
            advice = "Expected records that PostgreSQL can hold: text without NUL, at most 1 GB"
        elif isinstance(error, errors.OperationalError | errors.ReadOnlySqlTransaction):
            kind = StoreDiskError
            advice = "Check that PostgreSQL runs and has space, then try again"
        ours = kind(f"store {self.path!r}: {said(error)}; {what}. {advice}")
        ours.__cause__ = error
        return ours

    # --- reading

    def look_up(self, lookup: Callable[[Any], T]) -> T:
        """Run a lookup on the connection of this thread, all of it on one state."""
        try:
            connection = getattr(self._lookups, "connection", None)
            if connection is None or connection.broken:
                connection = self._lookups.connection = self.connect()
                connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                connection.read_only = True
            with connection.transaction():
                return lookup(PostgresLookups(connection))
        except (psycopg.Error, ValueError) as error:
            raise self.named(error, "it could not be read")  # noqa: B904 (it has its cause)

    def close(self) -> None:
        """Close all connections."""
        self.readers.shutdown()
        for connection in self._connections:
            connection.close()
        if self._server is not None:
            self._server.stop()


def _guarded(operation: Callable[[Any, float], Any]) -> Callable[[PostgresTables, float], Any]:
    """An operation whose result and errors count only if it had all that it asked for."""

    def run(tables: PostgresTables, now: float) -> Any:
        try:
            return operation(tables, now)
        except Exception:  # Missing, or what came of something that is missing
            if tables.wanted:
                return None
            raise

    return run


def _schema() -> str:
    """The tables of SQLite with the types of PostgreSQL, amid what else it has."""
    tables, own = (
        files(package).joinpath("schema.sql").read_text("utf-8")
        for package in ("agl_sqlite", "agl_postgres")
    )
    made = "".join(re.findall(r"^CREATE TABLE .*?STRICT;", tables, re.DOTALL | re.MULTILINE))
    types = {"STRICT": "", "INTEGER": "bigint", "REAL": "float8", "TEXT": 'text COLLATE "C"'}
    made = re.sub("|".join(types), lambda found: types[found[0]], made)
    return re.sub("^-- Here stand .*", lambda _: made, own, flags=re.MULTILINE)


def public_address(known: Mapping[str, Any]) -> str:
    """The address of a database without its password, as libpq takes it."""
    rest = {one: str(known[one]) for one in known if not re.search("password|secret|scram", one)}
    user, name = (quote(rest.pop(one, ""), "") for one in ("user", "dbname"))
    hosts, ports = (rest.pop(one, "") for one in ("host", "port"))
    each = ports.split(",") * (1 if "," in ports else 1 + hosts.count(","))
    pairs = zip(hosts.split(","), each, strict=False)
    where = ",".join(f"{quote(host, '')}{f':{port}' if port else ''}" for host, port in pairs)
    more = f"?{urlencode(rest, quote_via=quote)}" if rest else ""
    return f"postgresql://{f'{user}@' if user else ''}{where}/{name}{more}"


def said(error: Exception) -> str:
    """What PostgreSQL says, on one line."""
    return " ".join(str(error).split())[:300]
