"""agl-apo: prompts that get better, and how sure we are of it.

``APO`` (``algorithm: apo``) and ``GEPA`` (``algorithm: gepa``) are the algorithms. Nothing heavy is
imported before one of them is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "APO": "agl_apo.apo",
    "GEPA": "agl_apo.gepa",
    "Result": "agl_apo.result",
    "render": "agl_apo.templates",
}

__all__ = ["APO", "GEPA", "Result", "__version__", "render"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'agl_apo' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


if TYPE_CHECKING:
    from agl_apo.apo import APO as APO
    from agl_apo.gepa import GEPA as GEPA
    from agl_apo.result import Result as Result
    from agl_apo.templates import render as render
