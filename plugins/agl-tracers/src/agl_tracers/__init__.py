"""agl-tracers: the spans that today's instrumentation libraries make, each on its own rollout."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_tracers.agentops import AgentOpsTracer as AgentOpsTracer
    from agl_tracers.openinference import OpenInferenceTracer as OpenInferenceTracer
    from agl_tracers.otel_genai import OtelGenAITracer as OtelGenAITracer
    from agl_tracers.weave import WeaveTracer as WeaveTracer

__version__ = "0.1.0"
_HOME = {
    "AgentOpsTracer": "agentops",
    "OpenInferenceTracer": "openinference",
    "OtelGenAITracer": "otel_genai",
    "WeaveTracer": "weave",
}
__all__ = ["AgentOpsTracer", "OpenInferenceTracer", "OtelGenAITracer", "WeaveTracer"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"agl_tracers.{_HOME[name]}"), name)
    raise AttributeError(f"module 'agl_tracers' has no attribute {name!r}")
