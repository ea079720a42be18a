"""The tool calls of an answer, as far as they have come."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from agl_gateway.errors import is_json_object

ARGUMENTS = {"function": "arguments", "custom": "input"}
"""Kind of a call -> the field with what the tool is given."""


@dataclass(eq=False)
class ToolCall:
    """A tool call, as far as it has come; its kind is ``function`` or ``custom``."""

    number: int
    call_id: str
    has_own_id: bool
    """The server gave the id."""
    kind: str
    name: str = ""
    arguments: str = ""
    is_passed: bool = False
    """A piece of something else has come after the latest one of this call."""
    is_closed: bool = False
    """Its arguments were a whole JSON object when something else came."""
    holds_object: bool = False
    """An empty object has come as arguments: a placeholder, if text comes after it."""

    def as_chat(self) -> dict[str, Any]:
        said = {"name": self.name, ARGUMENTS[self.kind]: self.arguments}
        return {"id": self.call_id, "type": self.kind, self.kind: said}

    def check_name(self) -> None:
        """Raise a ``ValueError`` where it has no name."""
        if not self.name:
            raise ValueError(f"tool call {self.number} has no name")

    def release(self) -> dict[str, Any]:
        """Its arguments as a piece, where nothing has come after an empty object."""
        self.holds_object, self.arguments = False, "{}"
        return {"index": self.number, self.kind: {ARGUMENTS[self.kind]: "{}"}}

    def begins_another(self, call_id: str, name: str, is_numbered: bool) -> bool:
        """Whether a piece with this id and name, which may be empty, begins another call.

        It seems to be of this one, whose number the server has given it if it ``is_numbered``.
        """
        if call_id and self.has_own_id and call_id != self.call_id:
            return True
        if not name or not self.name:
            return False
        arguments = "{}" if self.holds_object else self.arguments
        if call_id and self.has_own_id:
            return (bool(arguments) or self.is_passed) and name != self.name
        if name == self.name and is_numbered and not is_json_object(arguments):
            return False  # its name comes with each piece
        another = self.is_passed and name != self.name
        return bool(arguments) or another or not is_numbered


def is_object(text: str) -> bool:
    """Whether it is a whole JSON object, as complete arguments are."""
    return text.rstrip().endswith("}") and is_json_object(text)


def pass_calls(calls: Iterable[ToolCall], but: ToolCall | None = None) -> None:
    """Something else has come than a piece of these calls."""
    for call in calls:
        if call is not but and not call.is_closed:
            call.check_name()
            call.is_passed, call.is_closed = True, is_object(call.arguments)
