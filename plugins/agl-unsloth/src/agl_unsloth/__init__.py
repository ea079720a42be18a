"""agl-unsloth: fine-tuning on what the agent itself did well, with TRL or Unsloth.

``SFT`` (``algorithm: sft``) trains on the best rollouts, ``DPO`` (``algorithm: dpo``) on pairs of
a better and a worse answer to one prompt. Nothing heavy is imported before one of them is used.
"""

import os
from typing import Any, cast

import lazy_loader  # pyright: ignore[reportMissingTypeStubs]

# Before torch is loaded, as in agl-torch: threads that spin would take the cores of agents.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = cast(Any, lazy_loader).attach_stub(__name__, __file__)
