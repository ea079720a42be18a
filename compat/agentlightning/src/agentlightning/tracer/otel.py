"""OpenTelemetry's spans."""

from agentlightning._names import rest
from agl import (
    OtelTracer as OtelTracer,
)

__getattr__ = rest(__name__)
