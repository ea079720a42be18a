"""agl-tinker: reinforcement learning and fine-tuning by Thinking Machines' Tinker (``tinker``)."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_tinker.algorithm import Tinker as Tinker

__version__ = "0.1.0"

__all__ = ["Tinker", "__version__"]


def __getattr__(name: str) -> Any:
    if name != "Tinker":
        raise AttributeError(f"module 'agl_tinker' has no attribute {name!r}")
    from agl_tinker.algorithm import Tinker

    return Tinker
