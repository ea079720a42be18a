# pyright: standard
"""Reads a request field by field, so that what nobody has read can be refused by name."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Never, TypeVar

from agl.utils.text import shorten

T = TypeVar("T")


class FieldError(ValueError):
    """A field of a request is wrong, or cannot be translated."""


HOSTED_ALONE = (
    "there are only tools that the provider's own servers run, which do not exist here; offer a "
    "function of the agent's own"
)
"""Why a request is refused that cannot do what it is for, such as a search that an agent makes."""

_NO_HINTS: Mapping[str, str] = {}
_KINDS = {
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
        is_recorded: It was answered elsewhere: what is unknown in it, or of another kind, counts as
            absent.

    Raises:
        FieldError: It is no object.
    """

    def __init__(self, value: Any, path: str = "", is_recorded: bool = False) -> None:
        self.path = path
        self.degraded: list[str] = []
        """What was left out, and why; of all objects within this one, too."""
        self.is_recorded = is_recorded
        if not isinstance(value, dict):
            refuse(path or "the request body", f"expected an object, got {shorten(repr(value))}")
        self._values = {name: given for name, given in value.items() if given is not None}
        self._known: list[str] = []

    def at(self, name: str) -> str:
        """The path of a field."""
        return f"{self.path}.{name}" if self.path else name

    def any(self, name: str) -> Any:
        """A field of whatever kind, or None."""
        self._known.append(name)
        return self._values.pop(name, None)

    def peek(self, name: str) -> Any:
        """A field that somebody reads later, or None."""
        return self._values.get(name)

    def get(self, name: str, kind: type[T]) -> T | None:
        """A field of this kind, or None.

        Raises:
            FieldError: It is of another kind.
        """
        value = self.any(name)
        if value is None:
            return None
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            self.refuse(name, f"expected {_KINDS[kind]}, got {shorten(repr(value))}")
            return None
        return value

    def need(self, name: str, kind: type[T], recorded: T | None = None) -> T:
        """As ``get``, and the field must be there; a recorded one that lacks it is ``recorded``."""
        if self.is_recorded and recorded is not None and name not in self._values:
            return recorded
        value = self.get(name, kind)
        if value is None:
            refuse(self.at(name), f"is missing; expected {_KINDS[kind]}")
        return value

    def one_of(self, name: str, allowed: Sequence[str], why: str) -> str | None:
        """A field with one of these values, or None.

        Raises:
            FieldError: It has another value; ``why`` says what to do instead.
        """
        value = self.any(name)
        if value is not None and value not in allowed:
            self.refuse(name, f"got {shorten(repr(value))}, expected {' or '.join(allowed)}; {why}")
        return value

    def objects(self, name: str) -> "Iterator[Fields]":
        """The objects of a list; none when it is absent."""
        for number, value in enumerate(self.get(name, list) or ()):
            yield self.within(value, f"{name}.{number}")

    def object(self, name: str) -> "Fields | None":
        """An object within this one, or None."""
        value = self.any(name)
        return None if value is None else self.within(value, name)

    def within(self, value: Any, name: str) -> "Fields":
        """An object that stands within this one."""
        fields = Fields(value, self.at(name), self.is_recorded)
        fields.degraded = self.degraded
        return fields

    def refuse(self, name: str, message: str) -> None:
        """Refuse a request because of one of its fields; one that was recorded is read on.

        Raises:
            FieldError: It was not recorded.
        """
        if not self.is_recorded:
            refuse(self.at(name), message)

    def degrade(self, what: str, why: str) -> str:
        """Note that something of this object is left out; returns a text to put in its place."""
        self.degraded.append(f"{self.path}: {what} {why}")
        return f"[{what}, left out: {why}]"

    def pass_over(self, *names: str) -> None:
        """These fields change nothing about the answer."""
        for name in names:
            self.any(name)

    def end(self, *passed_over: str, hints: Mapping[str, str] = _NO_HINTS) -> None:
        """All that is understood has been read, but for fields that change nothing.

        ``hints`` say of some others what to do about them.

        Raises:
            FieldError: There is more.
        """
        if self.is_recorded:
            return
        self.pass_over(*passed_over)
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
            refuse(self.at(name), f"{hint} (got {shorten(repr(value))})")


def refuse(path: str, message: str) -> Never:
    """Refuse a request because of one of its fields.

    Raises:
        FieldError: Always.
    """
    raise FieldError(f"{path}: {message}")
