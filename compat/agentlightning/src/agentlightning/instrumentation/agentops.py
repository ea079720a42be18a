"""AgentOps' instrumentation, by hand."""

from agl import AgentOpsTracer

_instrumenting: list[AgentOpsTracer] = []


def instrument_agentops() -> None:
    """Record the calls of OpenAI's, Anthropic's and other clients, as ``AgentOpsTracer`` does."""
    if not _instrumenting:
        tracer = AgentOpsTracer()
        tracer.init_worker(0)
        _instrumenting.append(tracer)


def uninstrument_agentops() -> None:
    """Undo ``instrument_agentops``, as far as AgentOps' instrumentation can be undone."""
    while _instrumenting:
        _instrumenting.pop().teardown_worker(0)
