"""Copies of what callers may change in place, so that what a store keeps is its own."""

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any, TypeVar, cast

from pydantic_core import from_json, to_json

from agl.errors import InvalidRecordError
from agl.store.packed import INT_BITS
from agl.types.records import Record

R = TypeVar("R", bound=Record)

_FREE = ("input", "metadata", "heartbeat_stats")
"""Fields of records that hold what callers made."""
_SCALARS = (str, int, float, type(None))


def is_json(value: Any) -> bool:
    """Whether a value comes out of JSON as it went in."""
    try:
        return _is_json(value)
    except RecursionError:
        return False


def _is_json(value: Any) -> bool:
    kind = cast(type[Any], type(value))
    if kind is dict:
        items = cast(dict[Any, Any], value).items()
        return all(type(key) is str and _is_json(item) for key, item in items)
    if kind is list:
        return all(_is_json(item) for item in cast(list[Any], value))
    if kind is float:
        return math.isfinite(value)
    if kind is int:
        return value.bit_length() <= INT_BITS
    if kind is str:
        return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)
    return value is None or kind is bool


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
    """A deep copy; of JSON's types, which is what nearly all inputs are made of, a fast one.

    Raises:
        InvalidRecordError: It goes too deep, or holds itself.
    """
    try:
        return _copied(value)
    except RecursionError:
        raise InvalidRecordError(
            "a value goes too deep, or holds itself; expected lists and dicts within each other "
            "to about 100 levels"
        ) from None


def _copied(value: Any) -> Any:
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in cast(dict[Any, Any], value).items()}
    if isinstance(value, list):
        return [_copied(item) for item in cast(list[Any], value)]
    return deepcopy(value)
