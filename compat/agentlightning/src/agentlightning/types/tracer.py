"""Spans."""

from enum import StrEnum

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
