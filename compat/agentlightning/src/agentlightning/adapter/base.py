"""The contract of an adapter."""

from agentlightning._names import rest
from agl import (
    Adapter as Adapter,
    OtelTraceAdapter as OtelTraceAdapter,
    TraceAdapter as TraceAdapter,
)

__getattr__ = rest(__name__)
