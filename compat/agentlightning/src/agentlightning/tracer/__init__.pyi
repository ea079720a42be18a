"""The names; each is imported when it is first used."""

from .agentops import (
    AgentOpsTracer as AgentOpsTracer,
)
from .base import (
    Tracer as Tracer,
    clear_active_tracer as clear_active_tracer,
    get_active_tracer as get_active_tracer,
    set_active_tracer as set_active_tracer,
)
from .dummy import (
    DummyTracer as DummyTracer,
)
from .otel import (
    OtelTracer as OtelTracer,
)
from .weave import (
    WeaveTracer as WeaveTracer,
)
