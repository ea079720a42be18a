"""agl-unsloth: fine-tuning on what the agent itself did well, with TRL or Unsloth.

``SFT`` (``algorithm: sft``) trains on the best rollouts, ``DPO`` (``algorithm: dpo``) on pairs of
a better and a worse answer to one prompt. Nothing heavy is imported before one of them is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {"DPO": "agl_unsloth.dpo", "SFT": "agl_unsloth.sft"}

__all__ = ["DPO", "SFT", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'agl_unsloth' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


if TYPE_CHECKING:
    from agl_unsloth.dpo import DPO as DPO
    from agl_unsloth.sft import SFT as SFT
