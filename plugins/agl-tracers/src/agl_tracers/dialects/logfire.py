"""Logfire's instrumentation of clients, before it took OpenTelemetry's conventions."""

from agl_tracers.dialects.keyed import KeyedDialect


class Logfire(KeyedDialect):
    """Logfire before its version 5: ``request_data`` and ``response_data``."""

    request = "request_data"
    answer = "response_data"
