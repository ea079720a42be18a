"""Names of spans, and of what stands on them."""

from enum import StrEnum

from agl.semconv import *
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
