"""``OtelGenAITracer``: OpenTelemetry's own instrumentation of generative AI."""

import os
from collections.abc import Sequence
from typing import Any

import agl
from agl_tracers.backend import require_backend
from agl_tracers.instrumentation import PYDANTIC_AI, installed
from agl_tracers.instrumented import InstrumentedTracer

CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


class OtelGenAITracer(InstrumentedTracer):
    """Every ``opentelemetry-instrumentation-genai-*`` that is installed.

    One span for each model call, under the current GenAI conventions, and agents and tools around
    them. The conventions have no place for token ids: those come from the gateway.

    Messages are recorded unless ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`` says no.

    Args:
        libraries: Which to instrument, by the instrumentors' names (``openai``, ``langchain``,
            ``openai_agents``, ...); by default all that are installed.

    Raises:
        BrokenComponentError: The instrumentation is not installed, or in another version.
        ConfigError: There is no instrumentor for one of ``libraries``.
    """

    def __init__(self, libraries: Sequence[str] | None = None) -> None:
        require_backend("otel-genai", "opentelemetry-util-genai", ">=1.3b0,<2")
        super().__init__(
            [*installed("opentelemetry.instrumentation.genai."), PYDANTIC_AI], libraries
        )

    def init_worker(
        self, worker_id: int, store: agl.LightningStore | None = None, *args: Any, **kwargs: Any
    ) -> None:
        """See ``InstrumentedTracer.init_worker``."""
        # It is read at every call; off is the instrumentation's own default.
        os.environ.setdefault(CONTENT, "SPAN_ONLY")
        super().init_worker(worker_id, store, *args, **kwargs)
