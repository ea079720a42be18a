"""The contract of a runner."""

from agentlightning._names import rest
from agl import (
    Runner as Runner,
)

__getattr__ = rest(__name__)
