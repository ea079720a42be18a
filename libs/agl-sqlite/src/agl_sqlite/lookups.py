"""Reading a store over a connection to SQLite, with queries as SQL."""

import re
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from operator import itemgetter
from typing import Any, Final, TypeVar, cast

from agl.store.base import LightningStoreStatistics
from agl.store.engine.tables import SpanReader, StoredAttempt
from agl.store.queries import DocumentQuery, Filter, Query, make_page
from agl.types import Attempt, Document, PaginatedResult, ResourcesUpdate, Rollout, Worker
from agl.utils.json_values import json_of
from agl_sqlite.ids import number_of
from agl_sqlite.rows import (
    ATTEMPT_FIELDS,
    RESOURCES_COLUMNS,
    ROLLOUT_FIELDS,
    WORKER_FIELDS,
    attempt_of,
    document_of,
    resources_of,
    stored_attempt_of,
    view_of,
    worker_of,
)

T = TypeVar("T")


def read_statements(package: str, file: str) -> dict[str, str]:
    """The statements of a SQL file in a package, each behind its line ``-- name: NAME``."""
    text = files(package).joinpath(file).read_text("utf-8")
    parts = re.split(r"^-- name: (\w+)$", text, flags=re.MULTILINE)
    return {
        name: sql.strip().removesuffix(";")
        for name, sql in zip(parts[1::2], parts[2::2], strict=True)
    }


def _statements() -> dict[str, str]:
    columns = {
        "rollout": ", ".join(
            # SQLite refuses a page with text that is no UTF-8; bytes are read one by one.
            f"CAST(r.{name} AS BLOB)" if name in ("input", "config", "metadata") else f"r.{name}"
            for name in ROLLOUT_FIELDS
        ),
        "resources": RESOURCES_COLUMNS,
        # Attempts have the number of their rollout, and not its id.
        "attempt": ", ".join(
            f"CAST(t.{name} AS BLOB)"
            if name in ("metadata", "error")
            else f"{'r' if name == 'rollout_id' else 't'}.{name}"
            for name in ATTEMPT_FIELDS
        ),
        "worker": ", ".join(
            "CAST(heartbeat_stats AS BLOB)" if name == "heartbeat_stats" else name
            for name in WORKER_FIELDS
        ),
        "worker_fields": ", ".join(WORKER_FIELDS),
        "worker_values": ", ".join("?" for _ in WORKER_FIELDS),
        "worker_changes": ", ".join(f"{name} = excluded.{name}" for name in WORKER_FIELDS),
    }
    statements = read_statements("agl_sqlite", "statements.sql")
    for column, sql in columns.items():
        for name, text in statements.items():
            statements[name] = text.replace(f"{{{column}}}", sql)
    return statements


SQL: Final = _statements()
"""The statements of ``statements.sql``, by name."""


class SqliteLookups:
    """The reading side, on one connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def one(self, name: str, *parameters: Any) -> Any:
        """The first row of a statement, or None."""
        return self.connection.execute(SQL[name], parameters).fetchone()

    def counts(self) -> LightningStoreStatistics:
        found = self.connection.execute(SQL["counts"])
        names = [column[0] for column in found.description]
        return cast(LightningStoreStatistics, dict(zip(names, found.fetchone(), strict=True)))

    def views(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        """The known ones of these, in this order; as ``AttemptedRollout`` once attempted."""
        found = (self.one("rollout_view", number_of(one), one) for one in rollout_ids)
        return [view_of(row) for row in found if row is not None]

    def query_rollouts(self, query: Query) -> PaginatedResult[Rollout]:
        return self._page(view_of, "rollouts_page", "rollout r", query, "r.{}", ("r.n",))

    def latest_attempt(self, rollout_id: str) -> Attempt | None:
        stored = self.latest_stored(rollout_id)
        return stored.attempt if stored else None

    def query_attempts(self, rollout_id: str, query: Query) -> PaginatedResult[Attempt]:
        return self._page(
            attempt_of,
            "attempts_page",
            "attempt t JOIN rollout r ON r.n = t.n",
            query,
            "t.{}",
            ("t.a",),
            ("t.n = ? AND r.rollout_id = ?", [number_of(rollout_id), rollout_id]),
        )

    def query_spans(
        self, rollout_id: str, attempt_id: str | None, query: Query, read: SpanReader[T]
    ) -> PaginatedResult[T]:
        # First the keys: what is sorted has no bodies then.
        keys = self._page(
            itemgetter(0),
            "span_keys",
            "rollout r JOIN attempt t ON t.n = r.n JOIN span s ON s.a = t.a",
            query,
            "s.{}",
            ("t.a", "s.k"),
            _of_attempts(rollout_id, attempt_id),
        )
        spans = [read(*self.one("span", key)) for key in keys]
        return make_page(spans, query, total=keys.total)

    def query_documents(self, query: DocumentQuery) -> PaginatedResult[Document]:
        conditions, values = ["kind = ?"], [query.kind]
        if query.key_in is not None:
            conditions.append("key IN (SELECT value FROM json_each(?))")
            values.append(texts_json(query.key_in))
        if query.key_prefix:
            conditions.append("key BETWEEN ? AND ?")
            values += [query.key_prefix, query.key_prefix + chr(0x10FFFF)]
        if query.rollout_id_in is not None:
            sql, given = _condition(Filter("rollout_id", "within", query.rollout_id_in), "{}")
            conditions.append(sql)
            values += given
        where = page = " AND ".join(conditions)
        begun = [] if query.after is None else [query.after]
        if begun:
            page = f"{where} AND key > ?"
        rows = self.connection.execute(
            f"{SQL['documents']} {page} ORDER BY key LIMIT ?", (*values, *begun, query.limit)
        )
        found = [document_of(row) for row in rows]
        total = len(found)
        if begun or total == query.limit:
            counted = self.connection.execute(
                f"SELECT count(*) FROM document WHERE {where}", values
            )
            total = counted.fetchone()[0]
        return make_page(found, Query(limit=query.limit), total=total)

    def resources(self, resources_id: str) -> ResourcesUpdate | None:
        row = self.one("resources", resources_id)
        return resources_of(row) if row else None

    def latest_resources(self) -> ResourcesUpdate | None:
        row = self.one("latest_resources")
        return resources_of(row) if row else None

    def query_resources(self, query: Query) -> PaginatedResult[ResourcesUpdate]:
        return self._page(resources_of, "resources_page", "resources", query, "{}", ("r",))

    def worker(self, worker_id: str) -> Worker | None:
        row = self.one("worker", worker_id)
        return worker_of(row) if row else None

    def query_workers(self, query: Query) -> PaginatedResult[Worker]:
        return self._page(worker_of, "workers_page", "worker", query, "{}", ("w",))

    # --- steps

    def latest_stored(self, rollout_id: str) -> StoredAttempt | None:
        """The newest attempt."""
        row = self.one("latest_attempt", number_of(rollout_id), rollout_id)
        return stored_attempt_of(row) if row else None

    def _page(
        self,
        read: Callable[[Sequence[Any]], T],
        select: str,
        tables: str,
        query: Query,
        column: str,
        creation: tuple[str, ...],
        always: tuple[str, list[Any]] = ("", []),
    ) -> PaginatedResult[T]:
        """One page of records: rows of the statement ``select``, counted over ``tables``.

        ``column`` makes a column of a field, ``creation`` are those of the order of creation, and
        ``always`` is a condition beside the query's filters, with its parameters.
        """
        conditions, parameters = [always[0]] if always[0] else [], list(always[1])
        filters: list[str] = []
        fields = {query.sort_by, *(one.field for one in query.filters if query.match_all)}
        has_index = not fields.isdisjoint({"reward", "end_time"})  # which no other is to replace
        for one in query.filters:
            sql, values = _condition(one, column)
            if "reward" in fields and one.field == "status":  # only those have one
                sql = "'succeeded' IN (SELECT value FROM json_each(?))"
            filters.append(f"+{sql}" if has_index and one.field in ("status", "mode") else sql)
            parameters += values
        if filters:
            conditions.append("(" + (" AND " if query.match_all else " OR ").join(filters) + ")")
        if query.sort_by == "reward":
            conditions.append(f"{column.format('reward')} IS NOT NULL")
        sign = "+" if has_index and query.sort_by is None else ""
        keys = [] if query.sort_by is None else [_sort_key(query.sort_by, column)]
        keys += [f"{sign}{one}" for one in creation]
        order = ", ".join(f"{one} {'DESC' if query.descending else 'ASC'}" for one in keys)
        counted = list(parameters)
        where = wanted = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        if query.after is not None:
            place = ", ".join(keys)
            of_it = (
                "?" if query.sort_by is None else f"(SELECT {place} FROM rollout r WHERE r.n = ?)"
            )
            behind = f"({place}) {'<' if query.descending else '>'} {of_it}"
            where = f"{where} AND {behind}" if where else f" WHERE {behind}"
            parameters.append(number_of(query.after))
        page, key = f"{where} ORDER BY {order} LIMIT ? OFFSET ?", creation[-1]
        if query.limit != -1:  # first the keys: what is sorted, and skipped, has no bodies then
            page = f" WHERE {key} IN (SELECT {key} FROM {tables}{page}) ORDER BY {order}"
        parameters += [query.limit, query.offset]
        rows = self.connection.execute(f"{SQL[select]}{page}", parameters).fetchall()
        is_begun = query.offset > 0 or query.after is not None
        if not is_begun and not 0 < query.limit <= len(rows):  # all that there is
            return make_page(list(map(read, rows)), query, total=len(rows))
        total = self.connection.execute(f"SELECT count(*) FROM {tables}{wanted}", counted)
        return make_page(list(map(read, rows)), query, total=total.fetchone()[0])


def texts_json(texts: Iterable[str]) -> str:
    """JSON for ``json_each``, which cuts off texts at a NUL: those with one, nobody has stored."""
    return json_of([text for text in texts if "\0" not in text], "what is looked for")


def _of_attempts(rollout_id: str, attempt_id: str | None) -> tuple[str, list[Any]]:
    """Condition of spans, and its parameters."""
    number = number_of(rollout_id)
    if attempt_id is None:
        return "t.n = ? AND r.rollout_id = ?", [number, rollout_id]
    if attempt_id == "latest":
        newest = "(SELECT max(a) FROM attempt WHERE n = ?)"
        return f"t.n = ? AND r.rollout_id = ? AND t.a = {newest}", [number, rollout_id, number]
    ids = [number, rollout_id, number_of(attempt_id), attempt_id]
    return "t.n = ? AND r.rollout_id = ? AND t.a = ? AND t.attempt_id = ?", ids


_OF_RUN: Final = "CASE WHEN json_valid(r.metadata) THEN json_extract(r.metadata, '$.run') END"


def _condition(one: Filter, column: str) -> tuple[str, list[Any]]:
    name = _OF_RUN if one.field == "run" and column == "r.{}" else column.format(one.field)
    if one.kind == "exact":
        return f"{name} = ?", [one.value]
    if one.kind == "contains":
        return f"instr({name}, ?) > 0", [one.value]
    if one.kind in ("below", "above"):
        return f"{name} {'<' if one.kind == 'below' else '>'} ?", [one.value]
    values = texts_json(one.value)
    within = f"{name} IN (SELECT value FROM json_each(?))"
    if one.field != "rollout_id":
        return within, [values]
    # The numbers find the rows by key; the comparison of the whole ids weeds out strangers.
    numbers = json_of([number_of(value) for value in one.value], "numbers")
    key = column.format("n")
    return f"({key} IN (SELECT value FROM json_each(?)) AND {within})", [numbers, values]


def _sort_key(field: str, column: str) -> str:
    if column == "s.{}" and field in ("rollout_id", "attempt_id"):
        return "t.n" if field == "rollout_id" else "t.attempt_id"
    name = column.format("n" if column == "t.{}" and field == "rollout_id" else field)
    absent = "9e999" if field.endswith("_time") else "''"
    return name if field in ("status", "reward") else f"coalesce({name}, {absent})"
