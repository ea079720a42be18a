"""The public names; each is imported when it is first used."""

from .agentops import AgentOpsTracer as AgentOpsTracer
from .openinference import OpenInferenceTracer as OpenInferenceTracer
from .otel_genai import OtelGenAITracer as OtelGenAITracer
from .weave import WeaveTracer as WeaveTracer

__version__: str
