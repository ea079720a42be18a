"""Annotations and operations."""

from agl.emitter import (
    OperationContext as OperationContext,
    emit_annotation as emit_annotation,
    operation as operation,
)
from agl.semconv import (
    AGL_ANNOTATION as AGL_ANNOTATION,
    AGL_OPERATION as AGL_OPERATION,
)
