"""agl-unsloth: fine-tuning on what the agent itself did well, with TRL or Unsloth.

``SFT`` (``algorithm: sft``) trains on the best rollouts, ``DPO`` (``algorithm: dpo``) on pairs of
a better and a worse answer to one prompt. ``FineTuning`` is the loop that they share, for trainers
of one's own. Nothing heavy is imported before one of them is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "AzureSFT": "agl_unsloth.azure",
    "DPO": "agl_unsloth.dpo",
    "FineTuning": "agl_unsloth.loop",
    "SFT": "agl_unsloth.sft",
    "Served": "agl_unsloth.loop",
    "Tinker": "agl_unsloth.tinker",
    "Version": "agl_unsloth.versions",
}

__all__ = ["DPO", "SFT", "AzureSFT", "FineTuning", "Served", "Tinker", "Version", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'agl_unsloth' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


if TYPE_CHECKING:
    from agl_unsloth.azure import AzureSFT as AzureSFT
    from agl_unsloth.dpo import DPO as DPO
    from agl_unsloth.loop import FineTuning as FineTuning, Served as Served
    from agl_unsloth.sft import SFT as SFT
    from agl_unsloth.tinker import Tinker as Tinker
    from agl_unsloth.versions import Version as Version
