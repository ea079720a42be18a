"""A first look at large bodies, which costs what they do.

Pydantic lists every error, at about a kilobyte each when they are read: of a body of 60 MB that is
``[[],[],...]`` twenty million.
"""

from typing import Any, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaValidator

MAX_FIELDS = 10_000
"""Of an object whose fields have types."""
_KEPT = frozenset(("config", "cls", "default", "expected", "metadata", "serialization"))
"""Parts of a schema that hold no schemas, or none that validates."""


class Shape:
    """Finds the first error of a kind of body; its models' own functions are not asked."""

    def __init__(self, hint: Any) -> None:
        self._validator = SchemaValidator(_plain(TypeAdapter(hint).core_schema))

    def problem(self, value: Any) -> str | None:
        """What is wrong with decoded JSON; None where nothing is."""
        try:
            self._validator.validate_python(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        return None


def _plain(schema: Any) -> Any:
    """A schema that ends a list at its first error, without models, which bring their own."""
    if isinstance(schema, list):
        return [_plain(one) for one in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    parts = cast(dict[str, Any], schema)
    kind = parts.get("type")
    if isinstance(kind, str) and kind.startswith("function-"):
        return {"type": "any"}
    if kind == "json-or-python":
        return _plain(parts["json_schema"])
    found: dict[str, Any] = {n: one if n in _KEPT else _plain(one) for n, one in parts.items()}
    if kind == "model":
        found = found["schema"]
    elif kind == "list":
        found["fail_fast"] = True
    elif kind in ("dict", "model-fields"):
        few = {"type": "no-info", "function": _few}
        found = {"type": "function-before", "function": few, "schema": found}
    return found | ({"ref": parts["ref"]} if "ref" in parts else {})


def _few(value: Any) -> Any:
    if isinstance(value, dict) and len(cast(dict[Any, Any], value)) > MAX_FIELDS:
        raise ValueError(f"an object of more than {MAX_FIELDS} fields")
    return cast(Any, value)
