"""Spans."""

from enum import StrEnum
from typing import Any

from agl import SpanRecordingContext as SpanRecordingContext
from agl.semconv import AGL_VIRTUAL as AGL_VIRTUAL
from agl.types.spans import *


class SpanNames(StrEnum):
    """Names of spans and of their resource's attributes; newer scripts use ``semconv``."""

    REWARD = "agentlightning.reward"
    MESSAGE = "agentlightning.message"
    OBJECT = "agentlightning.object"
    EXCEPTION = "agentlightning.exception"
    VIRTUAL = AGL_VIRTUAL
    ROLLOUT_ID = "agentlightning.rollout_id"
    ATTEMPT_ID = "agentlightning.attempt_id"
    SPAN_SEQUENCE_ID = "agentlightning.span_sequence_id"


class SpanAttributeNames(StrEnum):
    """Attributes of spans of 0.2; newer scripts use ``semconv``."""

    MESSAGE = "message"
    OBJECT = "object"


def convert_timestamp(timestamp: int | float | None) -> float | None:
    """Unix seconds; what is too large to be seconds counts as nanoseconds."""
    return timestamp / 1e9 if timestamp is not None and timestamp > 1e12 else timestamp


def extract_extra_fields(src: Any, excluded_fields: list[str]) -> dict[str, Any]:
    """The public attributes of an object that JSON can hold, but those excluded."""
    plain = (str, int, float, bool, type(None), list, dict)
    return {
        name: value
        for name, value in vars(src).items()
        if name not in excluded_fields and not name.startswith("_") and isinstance(value, plain)
    }
