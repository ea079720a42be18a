"""Reading a store in a database, with queries as SQL: what SQLite and others have in common.

Statements have ``?`` for a value. What databases write differently, a subclass says.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from operator import itemgetter
from typing import Any, ClassVar, TypeVar, cast

from agl.store.base import LightningStoreStatistics
from agl.store.engine.tables import SpanReader, StoredAttempt
from agl.store.queries import DocumentQuery, Filter, Query, make_page
from agl.types import Attempt, Document, PaginatedResult, ResourcesUpdate, Rollout, Worker
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


def statements(
    *packages: str, body: str, newest: str, column: Callable[[str], str] = lambda name: name
) -> dict[str, str]:
    """The statements of ``statements.sql``, by name.

    Args:
        packages: With such a file; of two with one name, the later one counts.
        body: How that of a span is read. This and others stand for words in braces.
        newest: The condition that an attempt ``t`` is the newest of the rollout ``r``.
        column: How a column is read.
    """
    # Attempts have the number of their rollout, and not its id.
    names = (f"{'r' if one == 'rollout_id' else 't'}.{one}" for one in ATTEMPT_FIELDS)
    of_attempt = ", ".join(map(column, names))
    words = {
        "rollout": ", ".join(column(f"r.{name}") for name in ROLLOUT_FIELDS),
        "attempt": of_attempt,
        "stored_attempt": f"{of_attempt}, t.next_sequence, t.reward_place",
        "worker": ", ".join(map(column, WORKER_FIELDS)),
        "resources": RESOURCES_COLUMNS,
        "body": body,
        "newest": newest,
        "worker_fields": ", ".join(WORKER_FIELDS),
        "worker_values": ", ".join("?" for _ in WORKER_FIELDS),
        "worker_changes": ", ".join(f"{name} = excluded.{name}" for name in WORKER_FIELDS),
    }
    found: dict[str, str] = {}
    for package in packages:
        for name, text in read_statements(package, "statements.sql").items():
            found[name] = re.sub(r"{(\w+)}", lambda match: words[match[1]], text)
    return found


class SqlLookups(ABC):
    """The reading side, on one connection."""

    sql: ClassVar[dict[str, str]]
    """``statements`` of this database."""
    hint = ""
    """Before a column of which no index is to be used."""
    never = "9e999"
    """The time that is after all others."""
    lock = ""
    """Behind a statement whose rows nobody else is to change until the transaction ends."""
    of_run = "r.run"
    """The ``run`` of a rollout's metadata."""

    @abstractmethod
    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """What a statement finds."""

    @abstractmethod
    def within(self, column: str, values: Iterable[Any]) -> tuple[str, list[Any]]:
        """The condition that a column has one of these texts or numbers, and its values."""

    @abstractmethod
    def contains(self, column: str) -> str:
        """The condition that a column holds a text."""

    def one(self, name: str, *values: Any) -> Any:
        """The first row of a statement, by its name, or None."""
        found = self.rows(self.sql[name], values)
        return found[0] if found else None

    def counts(self) -> LightningStoreStatistics:
        names = [f"total_{kind}" for kind in ("rollouts", "attempts", "spans", "resources")]
        names.append("total_workers")
        return cast(LightningStoreStatistics, dict(zip(names, self.one("counts"), strict=True)))

    def views(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        """The known ones of these, in this order; as ``AttemptedRollout`` once attempted."""
        within, numbers = self.within("r.n", map(number_of, rollout_ids))
        rows = self.rows(f"{self.sql['rollouts_page']} WHERE {within}", numbers)
        found = {row[0]: row for row in rows}
        return [view_of(found[one]) for one in rollout_ids if one in found]

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
            ("t.sequence_id",),
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
            ("t.sequence_id", "s.k"),
            _of_attempts(rollout_id, attempt_id),
        )
        return make_page(self.spans(keys, read), query, total=keys.total)

    def spans(self, keys: Sequence[int], read: SpanReader[T]) -> list[T]:
        """The spans with these keys."""
        within, values = self.within("k", keys)
        rows = self.rows(f"{self.sql['spans_page']} WHERE {within}", values)
        found = {key: read(body, number) for key, body, number in rows}
        return [found[key] for key in keys]

    def query_documents(self, query: DocumentQuery) -> PaginatedResult[Document]:
        # Few rollouts lead to fewer documents than the kind does, which a planner cannot know.
        hint = self.hint if query.rollout_id_in is not None else ""
        conditions, values = [f"{hint}kind = ?"], [query.kind]
        if query.key_in is not None:
            sql, given = self.within("key", query.key_in)
            conditions.append(sql)
            values += given
        if query.key_prefix:
            conditions.append("key BETWEEN ? AND ?")
            values += [query.key_prefix, query.key_prefix + chr(0x10FFFF)]
        if query.rollout_id_in is not None:
            within = Filter("rollout_id", "within", query.rollout_id_in)
            sql, given = self._condition(within, "{}")
            conditions.append(sql)
            values += given
        where = page = " AND ".join(conditions)
        begun = [] if query.after is None else [query.after]
        if begun:
            page = f"{where} AND key > ?"
        sql = f"{self.sql['documents']} {page} ORDER BY key LIMIT {_limit(query.limit)}"
        found = [document_of(row) for row in self.rows(sql, (*values, *begun))]
        total = len(found)
        if begun or total == query.limit:
            ((total,),) = self.rows(f"SELECT count(*) FROM document WHERE {where}", values)
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
        ``always`` is a condition beside the query's filters, with its values.
        """
        conditions, values = [always[0]] if always[0] else [], list(always[1])
        filters: list[str] = []
        fields = {query.sort_by, *(one.field for one in query.filters if query.match_all)}
        has_index = not fields.isdisjoint({"reward", "end_time"})  # which no other is to replace
        for one in query.filters:
            sql, given = self._condition(one, column)
            if "reward" in fields and one.field == "status":  # only those have one
                sql, given = ("true" if "succeeded" in one.value else "false"), []
            filters.append(
                f"{self.hint}{sql}" if has_index and one.field in ("status", "mode") else sql
            )
            values += given
        if filters:
            conditions.append("(" + (" AND " if query.match_all else " OR ").join(filters) + ")")
        if query.sort_by == "reward":
            conditions.append(f"{column.format('reward')} IS NOT NULL")
        sign = self.hint if has_index and query.sort_by is None else ""
        keys = [] if query.sort_by is None else [self._sort_key(query.sort_by, column)]
        keys += [f"{sign}{one}" for one in creation]
        order = ", ".join(f"{one} {'DESC' if query.descending else 'ASC'}" for one in keys)
        counted = list(values)
        where = wanted = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        if query.after is not None:
            place = ", ".join(keys)
            of_it = (
                "?" if query.sort_by is None else f"(SELECT {place} FROM rollout r WHERE r.n = ?)"
            )
            behind = f"({place}) {'<' if query.descending else '>'} {of_it}"
            where = f"{where} AND {behind}" if where else f" WHERE {behind}"
            values.append(number_of(query.after))
        page, key = f"{where} ORDER BY {order} LIMIT {_limit(query.limit)} OFFSET ?", creation[-1]
        if query.limit != -1:  # first the keys: what is sorted, and skipped, has no bodies then
            page = f" WHERE {key} IN (SELECT {key} FROM {tables}{page}) ORDER BY {order}"
        rows = self.rows(f"{self.sql[select]}{page}", [*values, query.offset])
        is_begun = query.offset > 0 or query.after is not None
        if not is_begun and not 0 < query.limit <= len(rows):  # all that there is
            return make_page(list(map(read, rows)), query, total=len(rows))
        ((total,),) = self.rows(f"SELECT count(*) FROM {tables}{wanted}", counted)
        return make_page(list(map(read, rows)), query, total=total)

    def _condition(self, one: Filter, column: str) -> tuple[str, list[Any]]:
        name, value = column.format(one.field), one.value
        if one.field == "run" and column == "r.{}":
            name = self.of_run
        if one.kind == "within":
            within, values = self.within(name, value)
            if one.field != "rollout_id":
                return within, values
            # The numbers find the rows by key; the comparison of the whole ids weeds out strangers.
            by_key, numbers = self.within(column.format("n"), map(number_of, value))
            return f"({by_key} AND {within})", [*numbers, *values]
        if isinstance(value, str) and "\0" in value:
            return "false", []  # which no database finds, or gives back
        if one.kind == "exact":
            return f"{name} = ?", [value]
        if one.kind == "contains":
            return self.contains(name), [value]
        return f"{name} {'<' if one.kind == 'below' else '>'} ?", [value]

    def _sort_key(self, field: str, column: str) -> str:
        if column == "s.{}" and field in ("rollout_id", "attempt_id"):
            return "t.n" if field == "rollout_id" else "t.attempt_id"
        name = column.format("n" if column == "t.{}" and field == "rollout_id" else field)
        if field in ("status", "reward", "sequence_id", "version"):  # there is one, or it is asked
            return name
        return f"coalesce({name}, {self.never if field.endswith('_time') else repr('')})"


def delete_rollouts(
    lookups: SqlLookups, rollout_ids: Sequence[str], *, only_count: bool
) -> tuple[dict[str, int], int]:
    """See ``Tables.delete_rollouts``; and how many of them were queued."""
    by_number, numbers = lookups.within("n", map(number_of, rollout_ids))
    by_id, ids = lookups.within("rollout_id", rollout_ids)
    sql = f"SELECT n, position FROM rollout WHERE {by_number} AND {by_id} {lookups.lock}"
    known = lookups.rows(sql, [*numbers, *ids])
    these, values = lookups.within("n", [number for number, _ in known])
    attempts = lookups.rows(f"SELECT a FROM attempt WHERE {these}", values)
    of_attempts, keys = lookups.within("a", [row[0] for row in attempts])
    latest = lookups.one("latest_resources_id")
    unused = lookups.rows(
        f"SELECT DISTINCT resources_id FROM rollout r WHERE {these} AND resources_id <> ? AND NOT "
        f"EXISTS (SELECT 1 FROM rollout WHERE resources_id = r.resources_id AND NOT {these})",
        [*values, latest[0] if latest else "", *values],
    )
    of_these, resources = lookups.within("resources_id", [row[0] for row in unused])
    held = {  # in the order in which it can be deleted
        "spans": (f"span WHERE {of_attempts}", keys),
        "documents": (f"document WHERE {these}", values),
        "attempts": (f"attempt WHERE {these}", values),
        "rollouts": (f"rollout WHERE {these}", values),
        "resources": (f"resources WHERE {of_these}", resources),
    }
    counts: dict[str, int] = {}
    for kind, (rows, given) in held.items():
        ((counts[kind],),) = lookups.rows(f"SELECT count(*) FROM {rows}", given)
        if not only_count:
            lookups.rows(f"DELETE FROM {rows}", given)
    return dict(reversed(counts.items())), sum(position is not None for _, position in known)


def _limit(limit: int) -> str:
    return str(limit) if limit >= 0 else f"{1 << 62}"


def _of_attempts(rollout_id: str, attempt_id: str | None) -> tuple[str, list[Any]]:
    """Condition of spans, and its values."""
    number = number_of(rollout_id)
    where, values = "t.n = ? AND r.rollout_id = ?", [number, rollout_id]
    if attempt_id is None:
        return where, values
    if attempt_id == "latest":
        newest = "(SELECT max(sequence_id) FROM attempt WHERE n = ?)"
        return f"{where} AND t.sequence_id = {newest}", [*values, number]
    return f"{where} AND t.a = ? AND t.attempt_id = ?", [*values, number_of(attempt_id), attempt_id]
