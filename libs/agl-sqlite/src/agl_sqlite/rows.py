"""Rows of the SQLite store as records, and records as rows."""

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from pydantic_core import from_json

from agl.store.engine.tables import StoredAttempt, attempted
from agl.store.packed_span import AnySpan, PackedSpan, packed
from agl.types import Attempt, Document, Failure, ResourcesUpdate, Rollout, RolloutConfig, Worker
from agl.utils.json_values import json_of
from agl_sqlite.ids import number_of

logger = logging.getLogger(__name__)

ROLLOUT_FIELDS: Final = tuple(Rollout.model_fields)
ATTEMPT_FIELDS: Final = tuple(Attempt.model_fields)


def json_or_none(value: Any, what: str) -> str | None:
    """A value as JSON, see ``json_of``; None for None."""
    return None if value is None else json_of(value, what)


def rollout_of(row: Sequence[Any]) -> Rollout:
    """From the columns of its fields; a ``ValueError`` names the rollout that cannot be read."""
    values = dict(zip(ROLLOUT_FIELDS, row, strict=True))
    try:
        values |= {name: _loaded(values[name]) for name in ("input", "metadata")}
        values["config"] = _config(values["config"])
        return Rollout(**values)
    except ValueError as error:
        raise ValueError(f"rollout {row[0]!r}: {error}") from error


def attempt_of(row: Sequence[Any]) -> Attempt:
    """From the columns of its fields."""
    values = dict(zip(ATTEMPT_FIELDS, row, strict=True))
    try:
        values["metadata"] = _loaded(values["metadata"])
        if values["error"] is not None:
            values["error"] = Failure.model_validate_json(values["error"])
        return Attempt(**values)
    except ValueError as error:
        of = f"attempt {values['attempt_id']!r} of rollout {values['rollout_id']!r}"
        raise ValueError(f"{of}: {error}") from error


def stored_attempt_of(row: Sequence[Any]) -> StoredAttempt:
    """From the columns of ``attempt``."""
    return StoredAttempt(attempt_of(row[:-2]), *row[-2:])


def view_of(row: Sequence[Any]) -> Rollout:
    """From the columns of ``rollouts_page``."""
    split = len(ROLLOUT_FIELDS)
    rollout = rollout_of(row[:split])
    return rollout if row[split + 1] is None else attempted(rollout, attempt_of(row[split:]))


def document_of(row: Sequence[Any]) -> Document:
    """From the columns of ``documents``."""
    kind, key, body, version, rollout_id = row
    try:
        return Document(
            kind=kind, key=key, body=from_json(body), version=version, rollout_id=rollout_id
        )
    except ValueError as error:
        raise ValueError(f"document {key!r} of kind {kind!r}: {error}") from error


RESOURCES_COLUMNS: Final = "resources_id, create_time, update_time, version, body"


def resources_of(row: Sequence[Any]) -> ResourcesUpdate:
    """From ``RESOURCES_COLUMNS``."""
    about = dict(zip(RESOURCES_COLUMNS.split(", ")[:-1], row, strict=False))
    return ResourcesUpdate(**about, resources=from_json(row[-1]))


WORKER_FIELDS: Final = tuple(Worker.model_fields)


def worker_of(row: Sequence[Any]) -> Worker:
    """From the columns of its fields; one that cannot be read is as new, for it reports again."""
    values = dict(zip(WORKER_FIELDS, row, strict=True))
    try:
        values["heartbeat_stats"] = _loaded(values["heartbeat_stats"])
        return Worker(**values)
    except ValueError as error:
        logger.error("worker %r cannot be read, and is taken for a new one: %s", row[0], error)
        return Worker(worker_id=row[0])


def row_of_worker(worker: Worker) -> tuple[Any, ...]:
    """The reverse of ``worker_of``."""
    what = f"worker {worker.worker_id!r}: its statistics"
    stats = json_or_none(worker.heartbeat_stats, what)
    values = {**worker.__dict__, "heartbeat_stats": stats}
    return tuple(map(values.__getitem__, WORKER_FIELDS))


def row_of_rollout(rollout: Rollout, position: int | None, key: str | None) -> tuple[Any, ...]:
    """For ``insert_rollout``; an ``InvalidRecordError`` where JSON cannot hold it."""
    about = rollout.rollout_id, rollout.status, rollout.mode, rollout.resources_id
    times = rollout.start_time, rollout.end_time
    number = number_of(rollout.rollout_id)
    return (number, *about, *times, position, key, *_bodies(rollout), rollout.reward)


def changed_place(rollout: Rollout, position: int | None) -> tuple[Any, ...]:
    """For ``move_rollout``."""
    number = number_of(rollout.rollout_id)
    return rollout.status, rollout.end_time, position, rollout.reward, number


def changed_fields(rollout: Rollout) -> tuple[Any, ...]:
    """For ``edit_rollout``; an ``InvalidRecordError`` where JSON cannot hold it."""
    number = number_of(rollout.rollout_id)
    return rollout.mode, rollout.resources_id, *_bodies(rollout), number


def _bodies(rollout: Rollout) -> tuple[Any, ...]:
    what = f"rollout {rollout.rollout_id!r}: its input"
    text = json_of(rollout.input, what)
    metadata = json_or_none(rollout.metadata, what.replace("input", "metadata"))
    return text, rollout.config.model_dump_json(), metadata


def row_of_attempt(
    stored: StoredAttempt, deadline: float | None, key: str | None
) -> tuple[Any, ...]:
    """For ``insert_attempt``."""
    attempt = stored.attempt
    numbers = number_of(attempt.attempt_id), number_of(attempt.rollout_id)
    about = attempt.attempt_id, attempt.sequence_id, attempt.status, attempt.worker_id
    return (*numbers, *about, attempt.start_time, deadline, stored.next_sequence, key)


def changed_attempt(stored: StoredAttempt, deadline: float | None) -> tuple[Any, ...]:
    """For ``save_attempt``; an ``InvalidRecordError`` where JSON cannot hold it."""
    attempt = stored.attempt
    what = f"attempt {attempt.attempt_id!r}: its metadata"
    about = attempt.status, attempt.worker_id, attempt.end_time, attempt.last_heartbeat_time
    bodies = json_or_none(attempt.metadata, what), json_or_none(attempt.error, what)
    reward = attempt.reward, stored.reward_place
    number = number_of(attempt.attempt_id)
    return (*about, deadline, stored.next_sequence, *bodies, *reward, number)


def row_of_span(number: int, span: AnySpan) -> tuple[Any, ...]:
    """For ``insert_span``: ``number`` is that of its attempt."""
    given = span if isinstance(span, PackedSpan) else packed(span)
    return (number, *given[2:-2])  # the others are its ids and marks


def row_of_document(document: Document) -> tuple[Any, ...]:
    """For ``save_document``; an ``InvalidRecordError`` where JSON cannot hold it."""
    kind, key, about = document.kind, document.key, document.rollout_id
    body = json_of(document.body, f"document {key!r} of kind {kind!r}")
    number = None if about is None else number_of(about)
    return kind, key, document.version, number, about, body


# Most rollouts of a run share one config; configs are frozen, so one object serves them all.
@lru_cache(maxsize=256)
def _config(text: bytes) -> RolloutConfig:
    return RolloutConfig.model_validate_json(text)


def _loaded(text: str | bytes | None) -> Any:
    return None if text is None else from_json(text)
