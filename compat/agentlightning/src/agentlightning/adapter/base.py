"""The contract of an adapter."""

from agl import (
    Adapter as Adapter,
    OtelTraceAdapter as OtelTraceAdapter,
    TraceAdapter as TraceAdapter,
)
