"""Writing a store over a connection to SQLite: what the operations keep and find."""

import logging
import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, cast

from pydantic_core import from_json, to_json

from agl.store import rules
from agl.store.engine.tables import StoredAttempt
from agl.store.packed_span import AnySpan
from agl.types import Attempt, Failure, ResourcesUpdate, Rollout, Worker
from agl.utils.json_values import json_of
from agl_sqlite.ids import make_id, number_of
from agl_sqlite.lookups import SQL
from agl_sqlite.rows import rollout_of, stored_attempt_of
from agl_sqlite.sql_lookups import delete_rollouts
from agl_sqlite.write_behind import WriteBehind

logger = logging.getLogger(__name__)

_MOST = 20_000
"""So many objects of a kind are kept."""
_QUEUE_HEAD = 64
"""Queued rollouts that are read at once, and kept."""


class SqliteTables(WriteBehind):
    """The engine's ``Tables``, on the writer's connection and in its thread.

    Claimed rollouts, the head of the queue, attempts and workers are also kept as objects, so that
    a step on them reads nothing; ``reload`` forgets all this, after a transaction was undone.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self.reload()

    def reload(self) -> None:
        super().reload()
        self._rollouts: dict[str, Rollout] = {}
        self._queue: dict[str, Rollout] = {}
        """The head of the queue, in its order."""
        self._is_whole_queue = False
        """Whether that is all of it; else there may be more in the file."""
        self._open_of: dict[str, dict[str, str]] = {}
        """Worker id -> attempt id -> rollout id of its open attempts, of workers asked for."""
        self._attempts: dict[str, StoredAttempt] = {}
        self._latest: dict[str, str] = {}
        """Rollout id -> id of its newest attempt, for rollouts in ``_rollouts``."""
        self._span_ids: dict[str, set[str]] = {}
        """Attempt id -> all its spans, of open attempts that were made since ``reload``."""
        self._workers: dict[str, Worker] = {}
        claims: dict[str, dict[str, str]] = {}
        for key, rollout_id, attempt_id in self._written.execute(SQL["claim_keys"]):
            claims.setdefault(key, {})[attempt_id] = rollout_id
        self._num_rollouts, self._num_attempts, self._last_position = self.one("counters")
        row = self.one("latest_resources_id")
        self.latest_resources_id: str | None = row[0] if row else None
        self._claims = claims  # whole: claims in other threads look into it meanwhile
        """Key of a request -> attempt id -> rollout id of what it made and nobody has begun."""
        self._key_of = {attempt_id: key for key, made in claims.items() for attempt_id in made}

    def begin(self) -> None:
        if max(map(len, (self._attempts, self._open_of, self._rollouts, self._workers))) > _MOST:
            self.reload()
        super().begin()

    def new_id(self, prefix: Literal["ro", "at"]) -> str:
        if prefix == "ro":
            self._num_rollouts += 1
            return make_id(prefix, self._num_rollouts)
        self._num_attempts += 1
        return make_id(prefix, self._num_attempts)

    # --- rollouts

    def rollout(self, rollout_id: str) -> Rollout | None:
        if (cached := self._rollouts.get(rollout_id)) is not None:
            return cached
        row = self.one("rollout", number_of(rollout_id), rollout_id)
        if row is None:
            return None
        rollout = rollout_of(row)
        self._remember(rollout)
        return rollout

    def first_queued(self) -> Rollout | None:
        """The head of the queue."""
        if not self._queue and not self._is_whole_queue:
            rows = self.connection.execute(SQL["first_queued"], (_QUEUE_HEAD,)).fetchall()
            for *row, number in rows:
                try:
                    rollout = rollout_of(row)
                    if rollout.status == "requeuing":
                        self.latest_attempt(row[0])  # a claim needs that one, too
                    self._queue[row[0]] = rollout
                except ValueError as error:
                    self._set_aside(row[0], number, error)
            self._is_whole_queue = len(rows) < _QUEUE_HEAD
            if rows and not self._queue:
                return self.first_queued()
        return next(iter(self._queue.values()), None)

    def _set_aside(self, rollout_id: str, number: int, error: ValueError) -> None:
        """Fail a queued rollout that cannot be read, for a reason that an attempt of it says."""
        logger.error("%s; it has failed, and is not claimed", error)
        now = time.time()
        next_sequence, latest = self.one("next_sequence_of_all", number)
        attempt = Attempt(
            rollout_id=rollout_id,
            attempt_id=self.new_id("at"),
            sequence_id=(latest or 0) + 1,
            start_time=now,
            end_time=now,
            status="failed",
            error=Failure(boundary="store", type="DamagedRecordError", message=str(error)),
        )
        stored = StoredAttempt(attempt, next_sequence or 1)
        self.insert_attempt(stored, None)
        self.save_attempt(stored, None)
        self._keep("move_rollout", number, ("failed", now, None, None, number))
        self.effects.dequeued += 1
        self.effects.ended.append(rollout_id)

    def has_nothing_for(self, worker_id: str | None, key: str | None) -> bool:
        """Whether a claim from an empty queue would change nothing; asked by any thread."""
        worker = self._workers.get(worker_id or "")
        is_known = worker_id is None or (worker is not None and worker.status != "unknown")
        return is_known and key not in self._claims

    def rollout_id_of_key(self, key: str) -> str | None:
        row = self.one("rollout_id_of_key", key)
        return row[0] if row else None

    def insert_rollout(self, rollout: Rollout, key: str | None = None) -> None:
        super().insert_rollout(rollout, key)
        if self._is_whole_queue or rollout.status == "preparing":
            rollout = _as_stored(rollout)
            self._keep_place(rollout)
            self._remember(rollout)

    def move_rollout(self, rollout: Rollout) -> None:
        super().move_rollout(rollout)
        self._queue.pop(rollout.rollout_id, None)
        self._keep_place(rollout)
        self._remember(rollout)

    def _keep_place(self, rollout: Rollout) -> None:
        """Append to the head of the queue what joins the queue, where the head is all of it."""
        if rollout.status in rules.QUEUED and self._is_whole_queue:
            self._is_whole_queue = len(self._queue) < _QUEUE_HEAD
            if self._is_whole_queue:
                self._queue[rollout.rollout_id] = rollout

    def edit_rollout(self, rollout: Rollout) -> None:
        super().edit_rollout(rollout)
        rollout = _as_stored(rollout)
        if rollout.rollout_id in self._queue:
            self._queue[rollout.rollout_id] = rollout
        self._remember(rollout)

    def _new_position(self) -> int:
        self._last_position += 1
        return self._last_position

    def _remember(self, rollout: Rollout) -> None:
        if rollout.status in ("preparing", "running"):
            self._rollouts[rollout.rollout_id] = rollout
        else:
            self._rollouts.pop(rollout.rollout_id, None)
            self._latest.pop(rollout.rollout_id, None)

    # --- attempts

    def attempt(self, rollout_id: str, attempt_id: str) -> StoredAttempt | None:
        stored = self._attempts.get(attempt_id)
        if stored is not None and stored.attempt.rollout_id == rollout_id:
            return stored
        ids = (number_of(attempt_id), attempt_id, number_of(rollout_id), rollout_id)
        row = self.one("attempt", *ids)
        return stored_attempt_of(row) if row else None

    def latest_attempt(self, rollout_id: str) -> Attempt | None:
        cached = self._attempts.get(self._latest.get(rollout_id, ""))
        if cached is not None:
            return cached.attempt
        stored = self.latest_stored(rollout_id)
        if stored is None:
            return None
        if rollout_id in self._rollouts and stored.attempt.status in rules.OPEN:
            self._latest[rollout_id] = stored.attempt.attempt_id
            self._attempts[stored.attempt.attempt_id] = stored
        return stored.attempt

    def next_sequence_of_all(self, rollout_id: str) -> int:
        """Above the number of every span of the rollout."""
        return self.one("next_sequence_of_all", number_of(rollout_id))[0]

    def open_attempt_of(self, worker_id: str) -> Attempt | None:
        open_ids = self._open_of.get(worker_id)
        if open_ids is None:
            rows = self.connection.execute(SQL["open_attempts_of"], (worker_id,))
            open_ids = self._open_of[worker_id] = dict(rows)
        for newest in sorted(open_ids, key=number_of, reverse=True):
            with suppress(ValueError):  # another attempt of the worker goes on without it
                return cast(StoredAttempt, self.attempt(open_ids[newest], newest)).attempt
        return None

    def overdue(self, now: float) -> list[tuple[Rollout, StoredAttempt]]:
        """Attempts whose deadline has passed."""
        found: list[tuple[Rollout | None, StoredAttempt | None]] = []
        for rollout_id, attempt_id in self.connection.execute(SQL["overdue"], (now,)).fetchall():
            try:
                found.append((self.rollout(rollout_id), self.attempt(rollout_id, attempt_id)))
            except ValueError as error:
                logger.error("%s; its attempt %r is not ended", error, attempt_id)
                self.connection.execute(SQL["forget_deadline"], (number_of(attempt_id),))
        return cast(list[tuple[Rollout, StoredAttempt]], found)

    def made_by(self, key: str) -> list[tuple[str, str]]:
        made = self._claims.get(key, {})
        return [(rollout_id, attempt_id) for attempt_id, rollout_id in made.items()]

    def insert_attempt(
        self, stored: StoredAttempt, deadline: float | None, key: str | None = None
    ) -> None:
        super().insert_attempt(stored, deadline, key)
        attempt = stored.attempt
        if key is not None:
            self._claims.setdefault(key, {})[attempt.attempt_id] = attempt.rollout_id
            self._key_of[attempt.attempt_id] = key
        self._keep_attempt(stored)
        self._latest[attempt.rollout_id] = attempt.attempt_id
        self._span_ids[attempt.attempt_id] = set()

    def save_attempt(self, stored: StoredAttempt, deadline: float | None) -> None:
        super().save_attempt(stored, deadline)
        attempt = stored.attempt
        old = self._attempts.get(attempt.attempt_id)
        if old is None or old.attempt.worker_id != attempt.worker_id:
            self._open_of.clear()
        self._keep_attempt(stored)

    def _keep_attempt(self, stored: StoredAttempt) -> None:
        attempt = stored.attempt
        if attempt.status != "preparing" and attempt.attempt_id in self._key_of:
            key = self._key_of.pop(attempt.attempt_id)  # whoever has the attempt got the answer
            del self._claims[key][attempt.attempt_id]
            if not self._claims[key]:
                del self._claims[key]
        open_ids = self._open_of.get(attempt.worker_id or "", {})
        self._attempts[attempt.attempt_id] = stored
        if attempt.status in rules.OPEN:
            open_ids[attempt.attempt_id] = attempt.rollout_id
        else:
            self._span_ids.pop(attempt.attempt_id, None)
            open_ids.pop(attempt.attempt_id, None)
            if attempt.error is not None:  # its traceback may be long
                del self._attempts[attempt.attempt_id]

    # --- spans

    def known_spans(self, attempt_id: str, span_ids: Sequence[str]) -> set[str]:
        ids = self._span_ids.get(attempt_id)
        if ids is None:
            wanted = json_of(list(span_ids), "span ids")
            rows = self.connection.execute(SQL["known_spans"], (number_of(attempt_id), wanted))
            return {row[0] for row in rows}
        return ids.intersection(span_ids)

    def insert_spans(self, attempt_id: str, spans: Sequence[AnySpan]) -> None:
        super().insert_spans(attempt_id, spans)
        if (ids := self._span_ids.get(attempt_id)) is not None:
            ids.update([span.span_id for span in spans])

    # --- documents

    def document_version(self, kind: str, key: str) -> int:
        row = self.one("document_version", kind, key)
        return row[0] if row else 0

    def delete_documents(self, kind: str, keys: Sequence[str]) -> int:
        within, values = self.within("key", keys)
        sql = f"DELETE FROM document WHERE kind = ? AND {within}"
        return self.connection.execute(sql, [kind, *values]).rowcount

    def delete_rollouts(self, rollout_ids: Sequence[str], *, only_count: bool) -> dict[str, int]:
        counts, num_queued = delete_rollouts(self, rollout_ids, only_count=only_count)
        if not only_count:
            self.effects.dequeued += num_queued
            self.reload()
        return counts

    # --- resources and workers

    def save_resources(self, update: ResourcesUpdate) -> None:
        super().save_resources(update)
        if not update.resources_id.startswith(rules.IMPORTED):
            self.latest_resources_id = update.resources_id

    def worker(self, worker_id: str) -> Worker | None:
        return self._workers.get(worker_id) or super().worker(worker_id)

    def save_worker(self, worker: Worker) -> None:
        super().save_worker(worker)
        self._workers[worker.worker_id] = worker


def _as_stored(rollout: Rollout) -> Rollout:
    """A copy with what JSON makes of its input and its metadata."""
    values = {name: getattr(rollout, name) for name in ("input", "metadata")}
    return rollout.changed(
        **{name: from_json(to_json(value)) for name, value in values.items() if value is not None}
    )
