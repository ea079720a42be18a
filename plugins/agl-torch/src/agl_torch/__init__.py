"""agl-torch: reinforcement learning in plain PyTorch on one machine, CPU or GPU.

``GRPO``, ``RLOO``, ``ReinforcePlusPlus``, ``GSPO``, ``CISPO``, ``PPO`` and ``Distillation`` are the
algorithms (``algorithm: grpo``, and so on); ``InferenceServer`` serves the model that they train.
Nothing heavy is imported before one of them is used.
"""

from typing import Any, cast

import lazy_loader  # pyright: ignore[reportMissingTypeStubs]

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = cast(Any, lazy_loader).attach_stub(__name__, __file__)
