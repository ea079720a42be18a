"""Rows of the SQLite store as records, and JSON in and out of them."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from pydantic_core import PydanticSerializationError, from_json, to_json

from agl.errors import InvalidRecordError
from agl.types import (
    Attempt,
    AttemptedRollout,
    Failure,
    LedgerPart,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    Worker,
)


class StoredAttempt(NamedTuple):
    """An attempt with the number that its next span gets."""

    attempt: Attempt
    next_sequence: int = 1


def attempted(rollout: Rollout, attempt: Attempt) -> AttemptedRollout:
    """A rollout with its latest attempt."""
    return AttemptedRollout(**rollout.__dict__, attempt=attempt)


_READ_DEPTH = 150
_ENVELOPE = 8
"""So many levels can be read back; with more brackets it is tried."""
ROLLOUT_FIELDS: Final = tuple(Rollout.model_fields)
ATTEMPT_FIELDS: Final = tuple(Attempt.model_fields)


def rollout_of(row: Sequence[Any]) -> Rollout:
    """From the columns of its fields."""
    values = dict(zip(ROLLOUT_FIELDS, row, strict=True))
    values["input"], values["metadata"] = from_json(values["input"]), _loaded(values["metadata"])
    values["config"] = _config(values["config"])
    return Rollout(**values)


def attempt_of(row: Sequence[Any]) -> Attempt:
    """From the columns of its fields."""
    values = dict(zip(ATTEMPT_FIELDS, row, strict=True))
    values["metadata"] = _loaded(values["metadata"])
    if values["error"] is not None:
        values["error"] = Failure.model_validate_json(values["error"])
    return Attempt(**values)


def stored_attempt_of(row: Sequence[Any]) -> StoredAttempt:
    """From the columns of ``attempts_page``."""
    return StoredAttempt(attempt_of(row[:-1]), row[-1])


def view_of(row: Sequence[Any]) -> Rollout:
    """From the columns of ``rollouts_page``."""
    split = len(ROLLOUT_FIELDS)
    rollout = rollout_of(row[:split])
    return rollout if row[split + 1] is None else attempted(rollout, attempt_of(row[split:]))


def ledger_part_of(row: Sequence[Any]) -> LedgerPart:
    """From the columns of ``ledger_page``; one whose body cannot be read says so."""
    about: dict[str, Any] = {
        "rollout_id": row[0],
        "run": row[1],
        "algorithm": row[2],
        "step": row[3],
        "mode": row[4],
        "generation": row[5],
        "lost": bool(row[6]),
    }
    try:
        return LedgerPart.model_validate({**from_json(row[7]), **about})
    except (ValueError, TypeError) as error:  # a newer agl wrote it, or the file was changed
        return LedgerPart(**about, problem=str(error))


def resources_of(row: Sequence[Any]) -> ResourcesUpdate:
    """From the columns of ``resources``."""
    return ResourcesUpdate(
        resources_id=row[0],
        create_time=row[1],
        update_time=row[2],
        version=row[3],
        resources=from_json(row[4]),
    )


WORKER_FIELDS: Final = tuple(Worker.model_fields)


def worker_of(row: Sequence[Any]) -> Worker:
    """From the columns of its fields."""
    values = dict(zip(WORKER_FIELDS, row, strict=True))
    values["heartbeat_stats"] = _loaded(values["heartbeat_stats"])
    # An older file says nothing of fields that came later.
    return Worker(**{name: value for name, value in values.items() if value is not None})


def row_of_worker(worker: Worker) -> tuple[Any, ...]:
    """The reverse of ``worker_of``."""
    what = f"worker {worker.worker_id!r}: its statistics"
    stats = json_or_none(worker.heartbeat_stats, what)
    values = {**worker.__dict__, "heartbeat_stats": stats}
    return tuple(map(values.__getitem__, WORKER_FIELDS))


# Most rollouts of a run share one config; configs are frozen, so one object serves them all.
@lru_cache(maxsize=256)
def _config(text: str) -> RolloutConfig:
    return RolloutConfig.model_validate_json(text)


def config_json(config: RolloutConfig) -> str:
    """The config as it is stored."""
    return config.model_dump_json()


def json_of(value: Any, what: str) -> str:
    """A value as JSON.

    Args:
        value: The value.
        what: What it is, for the message.

    Raises:
        InvalidRecordError: JSON cannot hold it.
    """
    try:
        text = to_json(value)
        if text.count(b"[") + text.count(b"{") > _READ_DEPTH:
            # Reading goes less deep than writing, and answers hold records in records of lists.
            from_json(b"[" * _ENVELOPE + text + b"]" * _ENVELOPE)
        return text.decode()
    except (PydanticSerializationError, UnicodeError, ValueError) as error:
        raise InvalidRecordError(
            f"{what} cannot be stored: {error}. Expected what JSON can hold: null, true, false, "
            "numbers, strings, lists and dicts"
        ) from error


def json_or_none(value: Any, what: str) -> str | None:
    """The same, and None for None."""
    return None if value is None else json_of(value, what)


def _loaded(text: str | None) -> Any:
    return None if text is None else from_json(text)
