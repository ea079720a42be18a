"""The contract of a tracer, and which one is active."""

from agentlightning._errors import ActiveTracerError, raised_as
from agentlightning._names import rest
from agl import (
    Tracer as Tracer,
    clear_active_tracer as clear_active_tracer,
    get_active_tracer as get_active_tracer,
    set_active_tracer as _set_active_tracer,
)
from agl.errors import TracerError


def set_active_tracer(tracer: Tracer) -> None:
    """Make a tracer the active one; see ``agl.set_active_tracer``."""
    with raised_as(ActiveTracerError, TracerError):
        _set_active_tracer(tracer)


__getattr__ = rest(__name__)
