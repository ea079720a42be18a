"""Files of a JSON object per line, as a run writes them, whatever has become of them since."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast


@dataclass
class JsonLines:
    """What a file has, and what it had that nobody can read."""

    name: str
    """Of the file."""
    objects: list[tuple[int, dict[str, Any]]] = field(
        default_factory=list[tuple[int, dict[str, Any]]]
    )
    """With the number of the line, from 1."""
    num_unread: int = 0
    """Lines, values, or the file itself."""
    first: str = ""
    """Which was the first of them, and why."""

    def leave_out(self, what: str) -> None:
        """Count something that cannot be read."""
        self.num_unread += 1
        self.first = self.first or what

    @property
    def unread(self) -> str:
        """What is left out, for people; "" where all was read."""
        if not self.num_unread:
            return ""
        return f"{self.name}: {self.num_unread} left out that cannot be read, first {self.first}"


def is_number(value: object) -> bool:
    """Whether a value is a finite number; true and false are none, and no number of 400 digits."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def read_json_lines(path: Path) -> JsonLines:
    """Read a file line by line, if it is there; what is no JSON object is left out, and counted.

    A last line without its end is not counted: it is being written, or was cut off by a kill.
    """
    found = JsonLines(path.name)
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return found
    except OSError as error:
        found.leave_out(f"the file: {error.strerror or error}")
        return found
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        try:
            value: Any = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            if line.endswith(b"\n"):
                found.leave_out(f"line {number}: {type(error).__name__}")
            continue
        if isinstance(value, dict):
            found.objects.append((number, cast("dict[str, Any]", value)))
        elif line.strip():
            found.leave_out(f"line {number}: no JSON object")
    return found
