"""Helpers that users call by name: span attributes (``otel``)."""
