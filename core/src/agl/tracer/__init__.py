"""Tracers: the contract (``base``) and the one that ships with the core (``otel``)."""

from agl.tracer.base import (
    Tracer as Tracer,
    clear_active_tracer as clear_active_tracer,
    get_active_tracer as get_active_tracer,
    set_active_tracer as set_active_tracer,
)
