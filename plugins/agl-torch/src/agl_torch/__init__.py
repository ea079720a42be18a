"""agl-torch: reinforcement learning in plain PyTorch on one machine, CPU or GPU.

``GRPO`` is the algorithm (``algorithm: grpo``); ``InferenceServer`` serves the model that it
trains. Nothing heavy is imported before one of them is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {"GRPO": "agl_torch.grpo", "InferenceServer": "agl_torch.server"}

__all__ = ["GRPO", "InferenceServer", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'agl_torch' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


if TYPE_CHECKING:
    from agl_torch.grpo import GRPO as GRPO
    from agl_torch.server import InferenceServer as InferenceServer
