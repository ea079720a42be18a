"""agl-unsloth: fine-tuning on what the agent itself did well, with TRL or Unsloth.

``SFT`` (``algorithm: sft``) trains on the best rollouts, ``DPO`` (``algorithm: dpo``) on pairs of
a better and a worse answer to one prompt. Nothing heavy is imported before one of them is used.
"""

from typing import Any, cast

import lazy_loader  # pyright: ignore[reportMissingTypeStubs]

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = cast(Any, lazy_loader).attach_stub(__name__, __file__)
