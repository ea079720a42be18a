"""``OpenInferenceTracer``: the instrumentors of OpenInference (Phoenix, Arize)."""

from collections.abc import Sequence

from agl_tracers.backend import require_backend
from agl_tracers.instrumentation import PYDANTIC_AI, installed
from agl_tracers.instrumented import InstrumentedTracer


class OpenInferenceTracer(InstrumentedTracer):
    """Every OpenInference instrumentor that is installed, begun when its library is imported.

    Its spans of the OpenAI SDK hold the whole answer, and so token ids and log-probabilities where
    the server sends them, also in streams.

    Args:
        libraries: Which to instrument, by the instrumentors' names (``openai``, ``langchain``,
            ``openai_agents``, ...); by default all that are installed.

    Raises:
        BrokenComponentError: OpenInference is not installed, or in another version.
        ConfigError: There is no instrumentor for one of ``libraries``.
    """

    def __init__(self, libraries: Sequence[str] | None = None) -> None:
        require_backend("openinference", "openinference-instrumentation", ">=0.1.50,<0.2")
        super().__init__([*installed("openinference."), PYDANTIC_AI], libraries)
