"""agl-torch: reinforcement learning in plain PyTorch on one machine, CPU or GPU.

``GRPO``, ``RLOO``, ``ReinforcePlusPlus``, ``GSPO``, ``CISPO``, ``PPO`` and ``Distillation`` are the
algorithms (``algorithm: grpo``, and so on), ``PolicyTraining`` with ``Tokens`` and ``Gain`` what a
loss of one's own is made of; ``InferenceServer`` serves the model that they train.
Nothing heavy is imported before one of them is used.
"""

import os
from typing import Any, cast

import lazy_loader  # pyright: ignore[reportMissingTypeStubs]

# Before torch is loaded. Threads that spin while they wait for each other take the cores of agents
# and servers beside them: on two busy cores a forward pass was seen to take 15 times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = cast(Any, lazy_loader).attach_stub(__name__, __file__)
