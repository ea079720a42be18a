"""What verl imports in each of its processes before its workers and trainers; see the package.

It registers platform, engines, inference server and checkpoint engine with verl, and replaces four
things that verl fixes for GPUs.
"""

from functools import partial, partialmethod
from typing import Any

from torch.distributed.fsdp import CPUOffloadPolicy
from verl.plugin.platform import PlatformRegistry

from verl_cpu.config import INFERENCE, PLATFORM
from verl_cpu.platform import CPUPlatform

PlatformRegistry.register(platform=PLATFORM)(CPUPlatform)  # verl's other modules ask for it

from verl.utils import distributed, fsdp_utils  # noqa: E402

# verl would ask torch for "cpu:gloo,cpu:gloo", which torch refuses.
distributed.initialize_global_process_group_ray = partial(
    distributed.initialize_global_process_group_ray, backend="cpu:gloo"
)
_save = fsdp_utils.fsdp2_sharded_save_to_cpu


def save_copies(module: Any) -> tuple[dict[str, Any], Any]:
    """Sharded weights of a module in memory of their own.

    verl saves them with ``.cpu()``, which on the CPU is no copy: the saved weights would follow the
    live ones, restoring them would do nothing, and the mode ``separate_async`` would take its old
    log-probabilities from the wrong weights, without an error.
    """
    state, spec = _save(module)
    return {name: (tensor.clone(), of_one) for name, (tensor, of_one) in state.items()}, spec


fsdp_utils.fsdp2_sharded_save_to_cpu = save_copies

# With the functions above, as they import them by name.
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer  # noqa: E402
from verl.workers.engine import EngineRegistry  # noqa: E402
from verl.workers.engine.fsdp import transformer_impl  # noqa: E402
from verl.workers.rollout import base  # noqa: E402
from verl.workers.rollout.replica import RolloutReplicaRegistry  # noqa: E402

from verl_cpu import checkpoint  # noqa: E402, F401  (registers itself)
from verl_cpu.inference import CPUReplica, WeightReceiver  # noqa: E402

# verl looks for finished rollouts every 2 seconds, longer than a step of a tiny model.
ReplayBuffer.__init__ = partialmethod(ReplayBuffer.__init__, poll_interval=0.2)
# verl pins memory for copies to a GPU, which torch refuses without one.
transformer_impl.CPUOffloadPolicy = lambda pin_memory: CPUOffloadPolicy(pin_memory=False)

RolloutReplicaRegistry.register(INFERENCE, lambda: CPUReplica)
# verl has no public call for the part that receives weights: a dictionary of names.
base._ROLLOUT_REGISTRY[(INFERENCE, "async")] = f"{WeightReceiver.__module__}.WeightReceiver"

# verl has its engines for "cuda" and "npu". Of FSDP only the second can work on a CPU.
_on_cpu = partial(EngineRegistry.register, backend="fsdp2", device="cpu")
_on_cpu(model_type="language_model")(transformer_impl.FSDPEngineWithLMHead)


@_on_cpu(model_type="value_model")
class CPUValueEngine(transformer_impl.FSDPEngineWithValueHead):
    """The critic, without flash attention, which verl names whatever the configuration says."""

    def _build_module(self) -> Any:
        import torch
        from transformers import AutoModelForTokenClassification

        config = self.model_config.hf_config
        config.num_labels = 1
        config.classifier_dropout = 0.0
        return AutoModelForTokenClassification.from_pretrained(
            self.model_config.local_path, config=config, dtype=torch.float32
        )
