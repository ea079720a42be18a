"""Rows of the SQLite store as records, and JSON in and out of them."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from pydantic_core import PydanticSerializationError, from_json, to_json

from agl.errors import InvalidRecordError
from agl.types import Attempt, Failure, LedgerPart, ResourcesUpdate, Rollout, RolloutConfig, Worker


def rollout_of(row: Sequence[Any]) -> Rollout:
    """From the columns of ``rollout`` in ``statements.sql``."""
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


def attempt_of(rollout_id: str, row: Sequence[Any]) -> Attempt:
    """From the columns of ``attempts_page``."""
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


def worker_of(row: Sequence[Any]) -> Worker:
    """From the columns of ``worker``, which are the fields of the record."""
    values = dict(zip(Worker.model_fields, row, strict=True))
    return Worker(**values | {"heartbeat_stats": _loaded(values["heartbeat_stats"])})


def row_of_worker(worker: Worker) -> tuple[Any, ...]:
    """The reverse of ``worker_of``."""
    what = f"worker {worker.worker_id!r}: its statistics"
    stats = json_or_none(worker.heartbeat_stats, what)
    values = {**worker.__dict__, "heartbeat_stats": stats}
    return tuple(values[name] for name in Worker.model_fields)


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
        return to_json(value).decode()
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
