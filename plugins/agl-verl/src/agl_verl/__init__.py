"""agl-verl: train the model behind an agent with verl, on one GPU or on a Ray cluster.

``VERL`` is the algorithm (``algorithm: verl``). Nothing heavy is imported before it runs: neither
verl nor ray nor torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {"VERL": "agl_verl.algorithm"}

__all__ = ["VERL", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'agl_verl' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


if TYPE_CHECKING:
    from agl_verl.algorithm import VERL as VERL
