"""Copies of what callers may change in place, so that what a store keeps is its own."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any, TypeVar, cast

from pydantic_core import from_json, to_json

from agl.types.records import Record

R = TypeVar("R", bound=Record)

_FREE = ("input", "metadata", "heartbeat_stats")
"""Fields of records that hold what callers made."""
_SCALARS = (str, int, float, type(None))


def is_json(value: Any) -> bool:
    """Whether a value comes out of JSON as it went in."""
    kind = cast(type[Any], type(value))
    if kind is dict:
        items = cast(dict[Any, Any], value).items()
        return all(type(key) is str and is_json(item) for key, item in items)
    if kind is list:
        return all(is_json(item) for item in cast(list[Any], value))
    if kind is str:
        return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)
    return value is None or kind in (bool, int, float)


def detached_record(record: R) -> R:
    """The record as it is handed out: what its reader changes in it stays the reader's."""
    return _with_free(record, detached)


def stored_record(record: R) -> R:
    """The record as its row would give it back, and the store's own."""
    return _with_free(
        record, lambda value: detached(value) if is_json(value) else from_json(to_json(value))
    )


def _with_free(record: R, change: Callable[[Any], Any]) -> R:
    fields = record.__dict__
    changes = {name: change(fields[name]) for name in _FREE if fields.get(name) is not None}
    return record.changed(**changes) if changes else record


def detached_changes(changes: dict[str, Any]) -> dict[str, Any]:
    """Changes as they are kept: what the caller does to its values later stays the caller's."""
    return {name: detached(value) if name in _FREE else value for name, value in changes.items()}


def detached(value: Any) -> Any:
    """A deep copy; of JSON's types, which is what nearly all inputs are made of, a fast one."""
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, dict):
        return {key: detached(item) for key, item in cast(dict[Any, Any], value).items()}
    if isinstance(value, list):
        return [detached(item) for item in cast(list[Any], value)]
    return deepcopy(value)
