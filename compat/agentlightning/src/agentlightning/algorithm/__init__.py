"""Algorithms."""

from agentlightning._names import lazy, without_absent

__getattr__, __dir__ = lazy(__name__, __file__)
__all__ = without_absent(__dir__())  # pyright: ignore[reportUnsupportedDunderAll]
