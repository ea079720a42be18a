"""The names; each is imported when it is first used."""

from .base import (
    Adapter as Adapter,
    OtelTraceAdapter as OtelTraceAdapter,
    TraceAdapter as TraceAdapter,
)
from .messages import (
    TraceToMessages as TraceToMessages,
)
from .triplet import (
    LlmProxyTraceToTriplet as LlmProxyTraceToTriplet,
    TracerTraceToTriplet as TracerTraceToTriplet,
    TraceToTripletBase as TraceToTripletBase,
)
