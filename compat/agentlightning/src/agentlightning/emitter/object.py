"""Objects."""

from typing import Any

from agentlightning._errors import ObjectError, raised_as
from agl.emitter import emit_object as _emit_object, get_object_value as _get_object_value
from agl.semconv import AGL_OBJECT as AGL_OBJECT, LightningSpanAttributes as Key
from agl.types import SpanCoreFields, SpanLike


def emit_object(
    object: Any, attributes: dict[str, Any] | None = None, propagate: bool = True
) -> SpanCoreFields:
    """Record any object; see ``agl.emit_object``."""
    with raised_as(ObjectError, ValueError):
        return _emit_object(object, attributes, propagate)


def encode_object(object: Any) -> dict[str, Any]:
    """The attributes of the span that ``emit_object`` makes."""
    return dict(emit_object(object, propagate=False).attributes)


def get_object_value(span: SpanLike) -> Any:
    """The object of an object span, or None.

    Raises:
        ObjectError: Its JSON cannot be read, or its type is unknown.
    """
    attributes = span.attributes or {}
    kind = attributes.get(Key.OBJECT_TYPE, "str")
    is_literal = Key.OBJECT_LITERAL in attributes
    if is_literal and kind not in ("str", "int", "float", "bool", "bytes"):
        raise ObjectError(f"object span: expected a literal of a known type, got one of {kind!r}")
    with raised_as(ObjectError, ValueError):
        return _get_object_value(span)
