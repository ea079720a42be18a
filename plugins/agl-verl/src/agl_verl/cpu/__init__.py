"""Train with verl without a GPU, to test an agent's training, on a tiny model made on the spot.

It is verl itself: its trainers, workers, weight updates and queues in Ray processes, its losses and
estimators. Replaced are the device (a CPU platform), the inference server (``transformers`` in
place of vLLM) and, for the mode ``separate_async``, the way of the weights (Ray in place of NCCL).
A green run shows that agent, rewards and configuration fit together. It does not show that the GPU
run is right, and a tiny random model learns only what a tiny model can::

    from agl_verl.cpu import cpu_config, make_tiny_model, use_cpu

    use_cpu()  # before verl is imported
    config = cpu_config(make_tiny_model("tiny"), trainer={"total_training_steps": 3})
    agl.Trainer(algorithm=agl.VERL(config), n_runners=2).fit(my_agent, my_tasks)

What it cannot do it refuses: tensor parallel inference, images, LoRA as an adapter, reward models,
FSDP1 and Megatron.

Look at verl's metric ``training/rollout_probs_diff_max`` after a run: the largest difference
between a token's probability at the inference server and at the trainer. It is below 1e-5 in the
mode ``sync`` when weights arrive; a run that merely ends proves little.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "as_hydra": "config",
    "cpu_config": "config",
    "make_tiny_model": "model",
    "on_cpu": "trainers",
    "use_cpu": "config",
    "write_prompts": "model",
}

__all__ = ["as_hydra", "cpu_config", "make_tiny_model", "on_cpu", "use_cpu", "write_prompts"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'agl_verl.cpu' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    return value


if TYPE_CHECKING:
    from agl_verl.cpu.config import (
        as_hydra as as_hydra,
        cpu_config as cpu_config,
        use_cpu as use_cpu,
    )
    from agl_verl.cpu.model import (
        make_tiny_model as make_tiny_model,
        write_prompts as write_prompts,
    )
    from agl_verl.cpu.trainers import on_cpu as on_cpu
