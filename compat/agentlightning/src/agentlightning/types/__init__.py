"""Records."""

from agentlightning._names import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
__all__ = __dir__()  # pyright: ignore[reportUnsupportedDunderAll]
