"""Helpers."""

from agentlightning._names import rest

__getattr__ = rest(__name__)
