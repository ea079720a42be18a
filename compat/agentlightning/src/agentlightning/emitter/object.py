"""Objects."""

from typing import Any

from agentlightning._errors import ObjectError, raised_as
from agentlightning._names import rest
from agl.emitter import emit_object as _emit_object, get_object_value as get_object_value
from agl.semconv import AGL_OBJECT as AGL_OBJECT
from agl.types import SpanCoreFields


def emit_object(
    object: Any, attributes: dict[str, Any] | None = None, propagate: bool = True
) -> SpanCoreFields:
    """Record any object; see ``agl.emit_object``."""
    with raised_as(ObjectError, ValueError):
        return _emit_object(object, attributes, propagate)


def encode_object(object: Any) -> dict[str, Any]:
    """The attributes of the span that ``emit_object`` makes."""
    return dict(emit_object(object, propagate=False).attributes)


__getattr__ = rest(__name__)
