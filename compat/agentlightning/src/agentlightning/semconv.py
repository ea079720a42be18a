"""Names of spans, and of what stands on them."""

from enum import StrEnum

from agl.semconv import (
    AGL_ANNOTATION as AGL_ANNOTATION,
    AGL_EXCEPTION as AGL_EXCEPTION,
    AGL_MESSAGE as AGL_MESSAGE,
    AGL_OBJECT as AGL_OBJECT,
    AGL_OPERATION as AGL_OPERATION,
    AGL_REWARD as AGL_REWARD,
    AGL_VIRTUAL as AGL_VIRTUAL,
    LightningResourceAttributes as LightningResourceAttributes,
    LightningSpanAttributes as LightningSpanAttributes,
)
from agl.types import RewardDimension
from agl.utils.otel import LinkMatch

RewardPydanticModel, LinkPydanticModel = RewardDimension, LinkMatch


class RewardAttributes(StrEnum):
    """Below ``agentlightning.reward.<i>``."""

    REWARD_NAME = "name"
    REWARD_VALUE = "value"


class LinkAttributes(StrEnum):
    """Below ``agentlightning.link.<i>``."""

    KEY_MATCH = "key_match"
    VALUE_MATCH = "value_match"
