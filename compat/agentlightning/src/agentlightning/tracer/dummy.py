"""A tracer that keeps nothing."""

from agentlightning._names import rest
from agl import (
    DummyTracer as DummyTracer,
)

__getattr__ = rest(__name__)
