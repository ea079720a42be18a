"""Reads a request field by field, so that what nobody has read can be refused by name."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Never, TypeVar

import msgspec

from agl_gateway.errors import RefusedError

T = TypeVar("T")

NO_HINTS: Mapping[str, str] = {}
KINDS = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


class Fields:
    """A JSON object of a request. A field that is null counts as absent.

    Args:
        value: What stands there.
        path: Where it stands, such as ``messages.0``; empty for the request itself.

    Raises:
        RefusedError: It is no object.
    """

    def __init__(self, value: Any, path: str = "") -> None:
        self.path = path
        if not isinstance(value, dict):
            refuse(path or "the request body", f"expected an object, got {_shown(value)}")
        self._values = {name: given for name, given in value.items() if given is not None}
        self._known: list[str] = []

    def at(self, name: str) -> str:
        """The path of a field."""
        return f"{self.path}.{name}" if self.path else name

    def any(self, name: str) -> Any:
        """A field of whatever kind, or None."""
        self._known.append(name)
        return self._values.pop(name, None)

    def get(self, name: str, kind: type[T]) -> T | None:
        """A field of this kind, or None.

        Raises:
            RefusedError: It is of another kind.
        """
        value = self.any(name)
        if value is None:
            return None
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            refuse(self.at(name), f"expected {KINDS[kind]}, got {_shown(value)}")
        return value

    def need(self, name: str, kind: type[T]) -> T:
        """As ``get``, and the field must be there."""
        value = self.get(name, kind)
        if value is None:
            refuse(self.at(name), f"is missing; expected {KINDS[kind]}")
        return value

    def one_of(self, name: str, allowed: Sequence[str], why: str) -> str | None:
        """A field with one of these values, or None.

        Raises:
            RefusedError: It has another value; ``why`` says what to do instead.
        """
        value = self.any(name)
        if value is not None and value not in allowed:
            refuse(self.at(name), f"got {_shown(value)}, expected {' or '.join(allowed)}; {why}")
        return value

    def objects(self, name: str) -> "Iterator[Fields]":
        """The objects of a list; none when it is absent."""
        for number, value in enumerate(self.get(name, list) or ()):
            yield Fields(value, self.at(f"{name}.{number}"))

    def object(self, name: str) -> "Fields | None":
        """An object within this one, or None."""
        value = self.any(name)
        return None if value is None else Fields(value, self.at(name))

    def pass_over(self, *names: str) -> None:
        """These fields change nothing about the answer."""
        for name in names:
            self.any(name)

    def end(self, hints: Mapping[str, str] = NO_HINTS) -> None:
        """All that is understood has been read.

        Args:
            hints: Field -> what to do about it.

        Raises:
            RefusedError: There is more.
        """
        for name, value in self._values.items():
            hint = hints.get(name)
            if hint is None:
                near = difflib.get_close_matches(name, self._known, 1)
                hint = (
                    f"unknown; did you mean {near[0]!r}?"
                    if near
                    else "the gateway cannot translate this field for the model's server; leave "
                    "it out"
                )
            refuse(self.at(name), f"{hint} (got {_shown(value)})")


def read_json(body: bytes) -> Any:
    """A request's JSON.

    Raises:
        RefusedError: It is none.
    """
    try:
        return msgspec.json.decode(body)
    except ValueError as error:
        raise RefusedError(400, f"the request body is not valid JSON: {error}") from None


def refuse(path: str, message: str) -> Never:
    """Refuse a request because of one of its fields.

    Raises:
        RefusedError: Always.
    """
    raise RefusedError(400, f"{path}: {message}")


def _shown(value: Any, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}…"
