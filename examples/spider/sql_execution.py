"""Run SQL that a model wrote, safely, and compare what it returns with what was asked for.

A query runs on a connection of its own that can only read this one file, for a limited time, and
returns a limited number of rows and bytes. The reward is execution match: the query is right when
it returns the same rows as the reference query, in every database of the task.
"""

import math
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

TIME_LIMIT_SECONDS = 5.0
ROW_LIMIT = 10_000
"""No reference query of Spider returns nearly as many."""
VALUE_LIMIT_BYTES = 100_000
"""Of a string, a blob or a row; it also bounds how long one SQL function can take."""

SIZE_LIMIT_BYTES = 10_000_000
"""Of all rows together."""
COLUMN_LIMIT = 500

Row = tuple[object, ...]

# Everything else is refused: writing, ATTACH, PRAGMA, loading extensions.
_ALLOWED = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
_REFUSED_FUNCTIONS = {"load_extension", "fts3_tokenizer"}


class QueryError(Exception):
    """A query that did not run to its end; the message is for the model that wrote it."""


@dataclass(frozen=True)
class QueryResult:
    """The rows of a query."""

    columns: list[str]
    rows: list[Row]

    def as_text(self, max_chars: int) -> str:
        """As the agent shows it to the model; what is cut off is said."""
        lines = [" | ".join(self.columns), *(" | ".join(map(str, row)) for row in self.rows)]
        text = "\n".join(lines)
        if len(text) > max_chars:
            text = f"{text[:max_chars]}\n... (cut off; {len(self.rows)} rows in all)"
        return text if self.rows else f"{text}\n(no rows)"


def run_query(
    database: Path,
    query: str,
    *,
    time_limit_seconds: float = TIME_LIMIT_SECONDS,
    row_limit: int = ROW_LIMIT,
) -> QueryResult:
    """Run one SELECT.

    Args:
        database: The SQLite file. It is opened read-only.
        query: One statement.
        time_limit_seconds: Wall-clock time; the query is broken off then.
        row_limit: A query with more rows than these is an error, not a part of its rows.

    Raises:
        QueryError: The query is wrong, is not allowed, or went over a limit.
        FileNotFoundError: There is no such database.
    """
    if not database.is_file():
        raise FileNotFoundError(f"no database at {database}")
    deadline = time.monotonic() + time_limit_seconds
    address = f"{database.resolve().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True, check_same_thread=False)) as connection:
        # Spider's databases hold a few texts that are no UTF-8.
        connection.text_factory = lambda data: data.decode("utf-8", errors="replace")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_LIMIT_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 200)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, COLUMN_LIMIT)
        connection.set_authorizer(_authorise)
        connection.set_progress_handler(lambda: time.monotonic() > deadline, 1000)
        try:
            cursor = connection.execute(query)
            rows, size = [], 0
            for row in cursor:
                rows.append(row)
                size += sum(len(value) for value in row if isinstance(value, str | bytes))
                if len(rows) > row_limit:
                    raise QueryError(f"more than {row_limit} rows")
                if size > SIZE_LIMIT_BYTES:
                    raise QueryError(f"more than {SIZE_LIMIT_BYTES} bytes")
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            # ValueError: a NUL character in the query.
            if time.monotonic() > deadline:
                raise QueryError(f"stopped after {time_limit_seconds:g} seconds") from error
            raise QueryError(f"{type(error).__name__}: {error}") from error
        if cursor.description is None:
            raise QueryError("that is no query: it returns no columns")
        return QueryResult([column[0] for column in cursor.description], rows)


def _authorise(action: int, argument: str | None, name: str | None, *_: str | None) -> int:
    if action not in _ALLOWED:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION and name in _REFUSED_FUNCTIONS:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def read_schema(database: Path) -> str:
    """The CREATE statements of a database: what the agent may know of it.

    Raises:
        FileNotFoundError: There is no such database.
    """
    rows = run_query(
        database, "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND type = 'table'"
    ).rows
    return "\n".join(f"{row[0]};" for row in rows)


# --- the reward -----------------------------------------------------------------------------------


def evaluate_query(query: str | None, reference: str, databases: Sequence[Path]) -> float:
    """1 when the query returns what the reference does in every database, else 0.

    A query that fails is wrong. Several databases of one schema tell a right query from one that
    returns the right rows by luck.

    Args:
        query: What the agent wrote; None, when it wrote nothing, is wrong.
        reference: The query of the data set.
        databases: SQLite files of one schema.

    Raises:
        ValueError: There is no database.
        RuntimeError: The reference itself fails. That says nothing about the agent, so it is no
            reward.
    """
    if not databases:
        raise ValueError("evaluate_query: expected at least one database")
    for database in databases:
        try:
            expected = run_query(database, reference)
        except QueryError as error:
            raise RuntimeError(
                f"the reference query fails in {database.name}: {error}; query: {reference}"
            ) from error
        if not query:
            return 0.0
        try:
            got = run_query(database, query)
        except QueryError:
            return 0.0
        if not same_rows(got.rows, expected.rows, ordered="order by" in reference.lower()):
            return 0.0
    return 1.0


def same_rows(one: Sequence[Row], other: Sequence[Row], *, ordered: bool) -> bool:
    """Whether two results are equal, whatever the order of their columns.

    Numbers are equal to nine digits, and equal across integers and floats.

    Args:
        one: Rows.
        other: Rows.
        ordered: Whether the order of the rows counts too.

    Source: the denotation match of Zhong, Yu and Klein (arXiv:2010.02840), section 2. Unlike their
        script, DISTINCT counts, and the order counts wherever the reference has an ORDER BY.
    """
    if len(one) != len(other):
        return False
    if not one:
        return True
    if len(one[0]) != len(other[0]):
        return False
    left = [tuple(map(_comparable, row)) for row in one]
    right = [tuple(map(_comparable, row)) for row in other]
    width = len(left[0])
    columns = [Counter(row[index] for row in left) for index in range(width)]
    wanted = [Counter(row[index] for row in right) for index in range(width)]
    # Only columns with the same values can stand for each other; that leaves few orders to try.
    fits = [[i for i in range(width) if columns[i] == column] for column in wanted]
    return any(
        _equal([tuple(row[i] for i in order) for row in left], right, ordered)
        for order in _orders(fits)
    )


def _orders(fits: list[list[int]]) -> list[tuple[int, ...]]:
    """Ways to choose a different column for each position, from those that fit there.

    At most 5000: only a result with seven or more columns of the same values has more.
    """
    orders: list[tuple[int, ...]] = [()]
    for choices in fits:
        orders = [(*order, i) for order in orders for i in choices if i not in order][:5000]
    return orders


def _equal(left: list[Row], right: list[Row], ordered: bool) -> bool:
    return left == right if ordered else Counter(left) == Counter(right)


def _comparable(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return value
    return float(f"{value:.9g}")
