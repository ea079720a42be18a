"""Exceptions."""

from agl.emitter import (
    emit_exception as emit_exception,
)
from agl.semconv import (
    AGL_EXCEPTION as AGL_EXCEPTION,
)
