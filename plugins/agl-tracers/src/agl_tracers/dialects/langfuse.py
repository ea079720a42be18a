"""Langfuse's SDK: a generation, as an observation with its input and output."""

from agl_tracers.dialects.keyed import KeyedDialect


class Langfuse(KeyedDialect):
    """Langfuse's SDK: ``langfuse.observation.input`` and ``.output`` of a generation."""

    kind = ("langfuse.observation.type", "generation")
    request = "langfuse.observation.input"
    answer = "langfuse.observation.output"
    model = "langfuse.observation.model.name"
