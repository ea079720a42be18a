"""What JSON may hold: reading it, writing it, and copying its values."""

import json
import math
from collections.abc import Iterable
from copy import deepcopy
from typing import Any, TypeVar, cast

from pydantic_core import PydanticSerializationError, from_json, to_json, to_jsonable_python

from agl.errors import InvalidRecordError
from agl.types.records import Record

R = TypeVar("R", bound=Record)

DEEPEST_JSON = 200
"""Lists and objects within each other, at most, in JSON that is read."""
INT_BITS = 14_000
"""Of whole numbers: Python reads none of more than 4,300 digits."""
_FREE = ("input", "metadata", "heartbeat_stats")
"""Fields of records that hold what callers made."""
_READ_DEPTH = 150
"""So many levels can be read back; with more brackets it is tried."""
_ENVELOPE = 8
_DEEPEST_KEPT = DEEPEST_JSON - _ENVELOPE - 1
_EXPECTED = "Expected what JSON can hold: null, true, false, numbers, strings, lists and dicts"


def copy_of_record(record: R) -> R:
    """The record with copies of its ``input``, ``metadata`` and ``heartbeat_stats``.

    So it is handed out: what its reader changes in these stays the reader's.
    """
    fields = record.__dict__
    changes = {name: copy_of(fields[name]) for name in _FREE if fields.get(name) is not None}
    return record.changed(**changes) if changes else record


def copy_of_changes(changes: dict[str, Any]) -> dict[str, Any]:
    """Changes as they are kept: what the caller does to its values later stays the caller's."""
    return {name: copy_of(one, name) if name in _FREE else one for name, one in changes.items()}


def copy_of(value: Any, what: str = "a value") -> Any:
    """A deep copy, a fast one of JSON's types; an ``InvalidRecordError`` where JSON fails."""
    try:
        return _copied(value, _DEEPEST_KEPT)
    except RecursionError:
        why = f"it goes deeper than {_DEEPEST_KEPT} levels, or holds itself"
    except ValueError as error:
        what, why = f"{what}{_path_to_refused(value)}", str(error)
    raise InvalidRecordError(f"{what} cannot be stored: {why}. {_EXPECTED}")


def _copied(value: Any, levels: int) -> Any:
    if value is None or isinstance(value, int) or (isinstance(value, str) and value.isascii()):
        return value
    if levels == 0:
        raise RecursionError
    if isinstance(value, dict):
        items = cast(dict[Any, Any], value).items()
        return {key: _copied(item, levels - 1) for key, item in items}
    if isinstance(value, list):
        return [_copied(item, levels - 1) for item in cast(list[Any], value)]
    is_float = isinstance(value, float)
    if isinstance(value, bytes | bytearray) or (is_float and not math.isfinite(value)):
        raise ValueError(f"it is {value!r:.80} ({type(value).__name__})")
    from_json(to_json(value), allow_inf_nan=False)
    return value if is_float or isinstance(value, str) else deepcopy(value)


def _path_to_refused(value: Any) -> str:
    items: Iterable[Any] = enumerate(cast("list[Any]", value)) if isinstance(value, list) else ()
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
    for key, item in items:
        try:
            _copied(item, _DEEPEST_KEPT)
        except ValueError:
            return f"[{key!r}]{_path_to_refused(item)}"
    return ""


def json_of(value: Any, what: str) -> str:
    """A value as JSON; an ``InvalidRecordError`` about ``what`` if JSON cannot hold it."""
    try:
        text = to_json(value)
        is_deep = text.count(b"[") + text.count(b"{") > _READ_DEPTH
        if is_deep or b"NaN" in text or b"Infinity" in text:
            # Reading goes less deep than writing, and answers hold records in records of lists.
            enveloped = b"[" * _ENVELOPE + text + b"]" * _ENVELOPE
            from_json(enveloped, allow_inf_nan=False)
        return text.decode()
    except (PydanticSerializationError, UnicodeError, ValueError) as error:
        raise InvalidRecordError(f"{what} cannot be stored: {error}. {_EXPECTED}") from error


def parse_json(text: Any) -> Any:
    """The value of JSON that somebody else wrote: an agent, or the model itself.

    ``json.loads`` raises RecursionError for many opening brackets, and gives values at which others
    fail that walk through them.

    Raises:
        ValueError: It is no text, no JSON, or more than ``DEEPEST_JSON`` levels deep, where an
            empty list may lie one deeper.
    """
    if not isinstance(text, str):
        raise ValueError(f"expected JSON text, got {type(text).__name__}")
    try:
        # Several times as quick. It refuses what is deeper, but lone surrogates, too.
        return from_json(text, cache_strings="keys")
    except (ValueError, TypeError):
        pass
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"JSON is nested deeper than {DEEPEST_JSON} levels") from None
    level, depth = [value], 0
    while level := [item for node in level for item in _nodes_in(node)]:
        depth += 1
        if depth > DEEPEST_JSON:
            raise ValueError(f"JSON is nested deeper than {DEEPEST_JSON} levels")
    return value


def _nodes_in(node: Any) -> list[Any]:
    items: Iterable[Any] = cast("list[Any]", node) if isinstance(node, list) else ()
    if isinstance(node, dict):
        items = cast("dict[str, Any]", node).values()
    return [item for item in items if isinstance(item, list | dict)]


def to_json_text(value: Any, *, strict: bool = False) -> str:
    """JSON of any object; what has none becomes its ``str``, or a ``ValueError`` if ``strict``."""
    try:
        plain = to_jsonable_python(value, fallback=None if strict else str)
    except Exception as error:
        if strict:
            raise ValueError(
                f"a {type(value).__name__} cannot be written as JSON: {error}. "
                "Convert it to dicts, lists, strings and numbers first"
            ) from error
        plain = str(value)
    return json.dumps(plain, ensure_ascii=False)
