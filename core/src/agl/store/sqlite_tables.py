"""Records in an SQLite file: ``operations.Lookups`` and ``operations.Tables`` over a connection."""

import re
import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final, Literal

from pydantic_core import PydanticSerializationError, from_json, to_json

from agl.errors import StoreError
from agl.store import rules
from agl.store.base import LightningStoreStatistics
from agl.store.ids import make_id, number_of
from agl.store.operations import Effects, StoredAttempt, attempted
from agl.store.queries import Filter, Query, make_page
from agl.types import (
    Attempt,
    Failure,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    Span,
    Worker,
)


def _statements() -> dict[str, str]:
    text = files("agl.store").joinpath("statements.sql").read_text("utf-8")
    parts = re.split(r"^-- name: (\w+)$", text, flags=re.MULTILINE)
    return {
        name: sql.strip().removesuffix(";")
        for name, sql in zip(parts[1::2], parts[2::2], strict=True)
    }


SQL: Final = _statements()
"""The statements of ``statements.sql``, by name."""

_CACHE_SIZE = 20_000


class SqliteLookups:
    """The reading side, on one connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def one(self, name: str, *parameters: Any) -> Any:
        """The first row of a statement, or None."""
        return self.connection.execute(SQL[name], parameters).fetchone()

    def counts(self) -> LightningStoreStatistics:
        # Nothing is ever deleted, so the highest key is the count.
        rollouts, attempts, spans, resources, workers = self.one("counts")
        return {
            "total_rollouts": rollouts,
            "total_attempts": attempts,
            "total_spans": spans,
            "total_resources": resources,
            "total_workers": workers,
        }

    def views(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        page = self.query_rollouts(Query((Filter("rollout_id", "within", rollout_ids),)))
        found = {rollout.rollout_id: rollout for rollout in page}
        return [found[rollout_id] for rollout_id in rollout_ids if rollout_id in found]

    def query_rollouts(self, query: Query) -> PaginatedResult[Rollout]:
        rows, total = self._page("rollouts_page", "rollout r", query, "r.{}", ("r.n",))
        items = [
            _rollout(row[:9])
            if row[9] is None
            else attempted(_rollout(row[:9]), _attempt(row[0], row[9:]))
            for row in rows
        ]
        return make_page(items, query, total=total)

    def latest_attempt(self, rollout_id: str) -> Attempt | None:
        stored = self._latest_stored(rollout_id)
        return stored.attempt if stored else None

    def query_attempts(self, rollout_id: str, query: Query) -> PaginatedResult[Attempt]:
        if not self._known(rollout_id):
            return make_page([], query, total=0)
        where = ("t.n = ?", [number_of(rollout_id)])
        rows, total = self._page("attempts_page", "attempt t", query, "t.{}", ("t.a",), where)
        return make_page([_attempt(rollout_id, row) for row in rows], query, total=total)

    def query_spans(
        self, rollout_id: str, attempt_id: str | None, query: Query
    ) -> PaginatedResult[Span]:
        if attempt_id == "latest":
            latest = self.latest_attempt(rollout_id)
            attempt_id = latest.attempt_id if latest else ""
        if not self._known(rollout_id):
            return make_page([], query, total=0)
        condition, parameters = "t.n = ?", [number_of(rollout_id)]
        if attempt_id is not None:
            condition += " AND t.a = ? AND t.attempt_id = ?"
            parameters += [number_of(attempt_id), attempt_id]
        rows, total = self._page(
            "spans_page",
            "attempt t JOIN span s ON s.a = t.a",
            query,
            "s.{}",
            ("t.a", "s.k"),
            (condition, parameters),
        )
        return make_page([Span.model_validate_json(row[0]) for row in rows], query, total=total)

    def resources(self, resources_id: str) -> ResourcesUpdate | None:
        row = self.one("resources", resources_id)
        return _resources(row) if row else None

    def latest_resources(self) -> ResourcesUpdate | None:
        row = self.one("latest_resources")
        return _resources(row) if row else None

    def query_resources(self, query: Query) -> PaginatedResult[ResourcesUpdate]:
        rows, total = self._page("resources_page", "resources", query, "{}", ("r",))
        return make_page([_resources(row) for row in rows], query, total=total)

    def worker(self, worker_id: str) -> Worker | None:
        row = self.one("worker", worker_id)
        return _worker(row) if row else None

    def query_workers(self, query: Query) -> PaginatedResult[Worker]:
        rows, total = self._page("workers_page", "worker", query, "{}", ("w",))
        return make_page([_worker(row) for row in rows], query, total=total)

    # --- steps

    def _known(self, rollout_id: str) -> bool:
        found = self.connection.execute(
            "SELECT rollout_id FROM rollout WHERE n = ?", (number_of(rollout_id),)
        ).fetchone()
        return found is not None and found[0] == rollout_id

    def _latest_stored(self, rollout_id: str) -> StoredAttempt | None:
        if not self._known(rollout_id):
            return None
        row = self.one("latest_attempt", number_of(rollout_id))
        return StoredAttempt(_attempt(rollout_id, row), row[9]) if row else None

    def _page(
        self,
        select: str,
        tables: str,
        query: Query,
        column: str,
        creation: tuple[str, ...],
        always: tuple[str, list[Any]] = ("", []),
    ) -> tuple[list[Any], int]:
        """Rows of one page, and how many match.

        Args:
            select: Name of the statement that makes the rows.
            tables: What to count over.
            query: The query.
            column: Pattern that makes a column of a field.
            creation: The columns of the order of creation.
            always: A condition that holds beside the query's filters, and its parameters.
        """
        conditions, parameters = [always[0]] if always[0] else [], list(always[1])
        filters: list[str] = []
        for one in query.filters:
            sql, values = _condition(one, column)
            filters.append(sql)
            parameters += values
        if filters:
            conditions.append("(" + (" AND " if query.match_all else " OR ").join(filters) + ")")
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        direction = "DESC" if query.descending else "ASC"
        if query.sort_by is None:
            order = ", ".join(f"{one} {direction}" for one in creation)
        else:
            order = f"{_sort_key(query.sort_by, column)} {direction}, {', '.join(creation)}"
        rows = self.connection.execute(
            f"{SQL[select]}{where} ORDER BY {order} LIMIT ? OFFSET ?",
            (*parameters, query.limit, query.offset),
        ).fetchall()
        if query.limit == -1 and query.offset == 0:
            return rows, len(rows)
        counted = self.connection.execute(f"SELECT count(*) FROM {tables}{where}", parameters)
        return rows, counted.fetchone()[0]


class SqliteTables(SqliteLookups):
    """Both sides, on the writer's connection and in its thread.

    Claimed rollouts, open attempts and workers are also kept as objects, so that a step on them
    reads nothing; ``reload`` forgets those, after a transaction was undone.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self.effects = Effects()
        self.written_bytes = 0
        """Roughly, since somebody set it to 0."""
        self.reload()

    def reload(self) -> None:
        """Forget what is known beside the file."""
        self._rollouts: dict[str, Rollout] = {}
        self._attempts: dict[str, StoredAttempt] = {}
        self._latest: dict[str, str] = {}
        """Rollout id -> id of its newest attempt, for rollouts in ``_rollouts``."""
        self._workers: dict[str, Worker] = {}
        counters = self.one("counters")
        self._num_rollouts, self._num_attempts, self._position = counters[:3]
        self._num_resources, self._touched = counters[3:]
        row = self.one("latest_resources_id")
        self._latest_resources_id: str | None = row[0] if row else None

    def new_id(self, prefix: Literal["ro", "at", "rs"]) -> str:
        if prefix == "ro":
            self._num_rollouts += 1
            return make_id(prefix, self._num_rollouts)
        if prefix == "at":
            self._num_attempts += 1
            return make_id(prefix, self._num_attempts)
        return make_id(prefix, self._num_resources + 1)

    def _execute(self, name: str, *parameters: Any) -> None:
        self.connection.execute(SQL[name], parameters)

    # --- rollouts

    def rollout(self, rollout_id: str) -> Rollout | None:
        cached = self._rollouts.get(rollout_id)
        if cached is not None:
            return cached
        row = self.one("rollout", number_of(rollout_id))
        if row is None or row[0] != rollout_id:
            return None
        rollout = _rollout(row)
        self._remember(rollout)
        return rollout

    def first_queued(self) -> Rollout | None:
        row = self.one("first_queued")
        return _rollout(row) if row else None

    def insert_rollout(self, rollout: Rollout) -> None:
        what = f"rollout {rollout.rollout_id!r}: its input"
        text = _json(rollout.input, what)
        self._execute(
            "insert_rollout",
            number_of(rollout.rollout_id),
            rollout.rollout_id,
            rollout.status,
            rollout.mode,
            rollout.resources_id,
            rollout.start_time,
            rollout.end_time,
            self._next_position(rollout),
            text,
            _config_json(rollout.config),
            _json_or_none(rollout.metadata, what),
        )
        self.written_bytes += len(text)
        self._remember(rollout)

    def move_rollout(self, rollout: Rollout) -> None:
        number = number_of(rollout.rollout_id)
        position = self._next_position(rollout)
        self._execute("move_rollout", rollout.status, rollout.end_time, position, number)
        self._remember(rollout)

    def edit_rollout(self, rollout: Rollout) -> None:
        what = f"rollout {rollout.rollout_id!r}: its new input or metadata"
        self._execute(
            "edit_rollout",
            rollout.mode,
            rollout.resources_id,
            _json(rollout.input, what),
            _config_json(rollout.config),
            _json_or_none(rollout.metadata, what),
            number_of(rollout.rollout_id),
        )
        self._remember(rollout)

    def _next_position(self, rollout: Rollout) -> int | None:
        if rollout.status not in rules.QUEUED:
            return None
        self._position += 1
        return self._position

    def _remember(self, rollout: Rollout) -> None:
        if rollout.status in ("preparing", "running"):
            if len(self._rollouts) >= _CACHE_SIZE:
                self._rollouts.clear()
                self._latest.clear()
            self._rollouts[rollout.rollout_id] = rollout
        else:
            self._rollouts.pop(rollout.rollout_id, None)
            self._latest.pop(rollout.rollout_id, None)

    # --- attempts

    def attempt(self, rollout_id: str, attempt_id: str) -> StoredAttempt | None:
        cached = self._attempts.get(attempt_id)
        if cached is not None and cached.attempt.rollout_id == rollout_id:
            return cached
        row = self.connection.execute(
            f"{SQL['attempts_page']} WHERE t.a = ? AND t.n = ?",
            (number_of(attempt_id), number_of(rollout_id)),
        ).fetchone()
        if row is None or row[0] != attempt_id or not self._known(rollout_id):
            return None
        return StoredAttempt(_attempt(rollout_id, row), row[9])

    def latest_attempt(self, rollout_id: str) -> Attempt | None:
        cached = self._attempts.get(self._latest.get(rollout_id, ""))
        if cached is not None:
            return cached.attempt
        stored = self._latest_stored(rollout_id)
        if stored is None:
            return None
        if rollout_id in self._rollouts and stored.attempt.status in rules.OPEN:
            self._latest[rollout_id] = stored.attempt.attempt_id
            self._attempts[stored.attempt.attempt_id] = stored
        return stored.attempt

    def open_attempt_of(self, worker_id: str) -> Attempt | None:
        row = self.one("open_attempt_of", worker_id)
        return self._stored_pair("rollout_of_attempt", row[0])[0][1].attempt if row else None

    def overdue(self, now: float) -> list[tuple[Rollout, StoredAttempt]]:
        return self._stored_pair("overdue", now)

    def _stored_pair(self, name: str, parameter: Any) -> list[tuple[Rollout, StoredAttempt]]:
        found: list[tuple[Rollout, StoredAttempt]] = []
        for rollout_id, attempt_id in self.connection.execute(SQL[name], (parameter,)).fetchall():
            rollout, stored = self.rollout(rollout_id), self.attempt(rollout_id, attempt_id)
            assert rollout is not None
            assert stored is not None
            found.append((rollout, stored))
        return found

    def insert_attempt(self, attempt: Attempt, deadline: float | None) -> None:
        self._execute(
            "insert_attempt",
            number_of(attempt.attempt_id),
            number_of(attempt.rollout_id),
            attempt.attempt_id,
            attempt.sequence_id,
            attempt.status,
            attempt.worker_id,
            attempt.start_time,
            deadline,
        )
        self._keep_attempt(StoredAttempt(attempt))
        self._latest[attempt.rollout_id] = attempt.attempt_id

    def save_attempt(self, stored: StoredAttempt, deadline: float | None) -> None:
        attempt = stored.attempt
        what = f"attempt {attempt.attempt_id!r}: its metadata"
        self._execute(
            "save_attempt",
            attempt.status,
            attempt.worker_id,
            attempt.end_time,
            attempt.last_heartbeat_time,
            deadline,
            stored.next_sequence,
            _json_or_none(attempt.metadata, what),
            _json_or_none(attempt.error, what),
            number_of(attempt.attempt_id),
        )
        self._keep_attempt(stored)

    def _keep_attempt(self, stored: StoredAttempt) -> None:
        if stored.attempt.status in rules.OPEN:
            if len(self._attempts) >= _CACHE_SIZE:
                self._attempts.clear()
            self._attempts[stored.attempt.attempt_id] = stored
        else:
            self._attempts.pop(stored.attempt.attempt_id, None)

    # --- spans

    def known_spans(self, attempt_id: str, span_ids: Sequence[str]) -> set[str]:
        rows = self.connection.execute(
            SQL["known_spans"], (number_of(attempt_id), _json(list(span_ids), "span ids"))
        )
        return {row[0] for row in rows}

    def insert_spans(self, attempt_id: str, spans: Sequence[Span]) -> None:
        number = number_of(attempt_id)
        rows: list[tuple[Any, ...]] = []
        for span in spans:
            # The span was validated when it was made; its fields are written as they stand.
            fields = {**span.__dict__, **(span.model_extra or {})}
            body = _json(fields, f"span {span.span_id!r} of attempt {attempt_id!r}")
            self.written_bytes += len(body)
            rows.append(
                (
                    number,
                    span.sequence_id,
                    span.span_id,
                    span.trace_id,
                    span.parent_id,
                    span.name,
                    span.start_time,
                    span.end_time,
                    body,
                )
            )
        self.connection.executemany(SQL["insert_span"], rows)

    # --- resources and workers

    def has_resources(self, resources_id: str) -> bool:
        return resources_id == self._latest_resources_id or self.resources(resources_id) is not None

    def latest_resources_id(self) -> str | None:
        return self._latest_resources_id

    def save_resources(self, update: ResourcesUpdate) -> None:
        self._num_resources += update.version == 1
        self._touched += 1
        self._execute(
            "save_resources",
            self._num_resources,
            update.resources_id,
            update.create_time,
            update.update_time,
            update.version,
            self._touched,
            _json(update.resources, f"resources {update.resources_id!r}"),
        )
        self._latest_resources_id = update.resources_id

    def worker(self, worker_id: str) -> Worker | None:
        cached = self._workers.get(worker_id)
        return cached if cached is not None else super().worker(worker_id)

    def save_worker(self, worker: Worker) -> None:
        fields = (
            worker.worker_id,
            worker.status,
            _json_or_none(worker.heartbeat_stats, f"worker {worker.worker_id!r}: its statistics"),
            worker.last_heartbeat_time,
            worker.last_dequeue_time,
            worker.last_busy_time,
            worker.last_idle_time,
            worker.current_rollout_id,
            worker.current_attempt_id,
        )
        if self.worker(worker.worker_id) is None:
            self._execute("insert_worker", *fields)
        else:
            self._execute("save_worker", *fields, worker.worker_id)
        if len(self._workers) >= _CACHE_SIZE:
            self._workers.clear()
        self._workers[worker.worker_id] = worker


# --- queries as SQL


def _condition(one: Filter, column: str) -> tuple[str, list[Any]]:
    name = column.format(one.field)
    if one.kind == "exact":
        return f"{name} = ?", [one.value]
    if one.kind == "contains":
        return f"instr({name}, ?) > 0", [one.value]
    values = _json(list(one.value), f"the values of {one.field}")
    within = f"{name} IN (SELECT value FROM json_each(?))"
    if one.field != "rollout_id":
        return within, [values]
    # The numbers find the rows by key; the comparison of the whole ids weeds out strangers.
    numbers = _json([number_of(value) for value in one.value], "numbers")
    key = column.format("n")
    return f"({key} IN (SELECT value FROM json_each(?)) AND {within})", [numbers, values]


def _sort_key(field: str, column: str) -> str:
    if column == "s.{}" and field in ("rollout_id", "attempt_id"):
        return "t.n" if field == "rollout_id" else "t.attempt_id"
    name = column.format("n" if column == "t.{}" and field == "rollout_id" else field)
    absent = "9e999" if field.endswith("_time") else "''"
    return f"coalesce({name}, {absent})"


# --- rows as records


def _rollout(row: Sequence[Any]) -> Rollout:
    return Rollout(
        rollout_id=row[0],
        status=row[1],
        mode=row[2],
        resources_id=row[3],
        start_time=row[4],
        end_time=row[5],
        input=from_json(row[6]),
        config=_config(row[7]),
        metadata=_loaded(row[8]),
    )


def _attempt(rollout_id: str, row: Sequence[Any]) -> Attempt:
    return Attempt(
        rollout_id=rollout_id,
        attempt_id=row[0],
        sequence_id=row[1],
        status=row[2],
        worker_id=row[3],
        start_time=row[4],
        end_time=row[5],
        last_heartbeat_time=row[6],
        metadata=_loaded(row[7]),
        error=Failure.model_validate_json(row[8]) if row[8] is not None else None,
    )


def _resources(row: Sequence[Any]) -> ResourcesUpdate:
    return ResourcesUpdate(
        resources_id=row[0],
        create_time=row[1],
        update_time=row[2],
        version=row[3],
        resources=from_json(row[4]),
    )


def _worker(row: Sequence[Any]) -> Worker:
    return Worker(
        worker_id=row[0],
        status=row[1],
        heartbeat_stats=_loaded(row[2]),
        last_heartbeat_time=row[3],
        last_dequeue_time=row[4],
        last_busy_time=row[5],
        last_idle_time=row[6],
        current_rollout_id=row[7],
        current_attempt_id=row[8],
    )


# Most rollouts of a run share one config; configs are frozen, so one object serves them all.
@lru_cache(maxsize=256)
def _config(text: str) -> RolloutConfig:
    return RolloutConfig.model_validate_json(text)


def _config_json(config: RolloutConfig) -> str:
    return config.model_dump_json()


def _json(value: Any, what: str) -> str:
    try:
        return to_json(value).decode()
    except (PydanticSerializationError, UnicodeError, ValueError) as error:
        raise StoreError(
            f"{what} cannot be stored: {error}. Expected what JSON can hold: null, true, false, "
            "numbers, strings, lists and dicts"
        ) from error


def _json_or_none(value: Any, what: str) -> str | None:
    return None if value is None else _json(value, what)


def _loaded(text: str | None) -> Any:
    return None if text is None else from_json(text)
