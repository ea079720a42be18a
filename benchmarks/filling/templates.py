"""JSON of records as text with holes: made once by the records' own types, then filled in.

Ten million spans as objects would take an hour; a text with ``%(name)s`` takes a microsecond.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from agl.types import Span
from agl.utils.json_values import json_of
from agl_records.types import LedgerPart


class Holes:
    """Values that stand for holes until the record is text.

    A text hole is a word that occurs nowhere else, a number hole a number that does not.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def text(self, name: str) -> str:
        """A hole for a text; what is filled in needs no escapes."""
        value = f"@hole-{name}@"
        self._names[value] = name
        return value

    def number(self, name: str) -> float:
        """A hole for a number, which is filled in as JSON."""
        value = 7_000_000.5 + len(self._names)
        self._names[repr(value)] = name
        return value

    def template(self, json: str) -> str:
        """The text with ``%(name)s`` in each hole."""
        json = json.replace("%", "%%")
        for value, name in self._names.items():
            json = json.replace(value, f"%({name})s")
        return json


def span_template(holes: Holes, span: Span) -> str:
    """A span as the store keeps it, with holes."""
    return holes.template(_json(span))


def part_template(holes: Holes, part: LedgerPart) -> str:
    """The account of a rollout as the store keeps it, with holes."""
    return holes.template(json_of(part.model_dump(exclude_defaults=True), "a template"))


def fill(template: str, values: Mapping[str, Any]) -> str:
    """The text with values in its holes."""
    return template % values


def _json(record: BaseModel) -> str:
    return record.model_dump_json()
