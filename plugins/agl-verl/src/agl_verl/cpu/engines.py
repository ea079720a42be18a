"""verl's FSDP2 engines for language and value models, on the CPU.

verl registers its engines for ``cuda`` and ``npu``; these are registered for ``cpu``. FSDP1 cannot
work there (it wants parameters on a device), so only ``strategy: fsdp2`` is offered. Two settings
that verl fixes for GPUs are set for CPUs: memory is not pinned for engines that only compute
forward, and the value model does not ask for flash attention.
"""

from typing import Any

import torch
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead


class _OnCPU:
    """Shared by the engines."""

    def _build_fsdp_module(self, module: Any) -> Any:
        pinned = transformer_impl.CPUOffloadPolicy
        # Pinning is for copies to a GPU, and refused without one.
        transformer_impl.CPUOffloadPolicy = lambda pin_memory=True: pinned(pin_memory=False)  # type: ignore[assignment]
        try:
            return super()._build_fsdp_module(module)  # type: ignore[misc]
        finally:
            transformer_impl.CPUOffloadPolicy = pinned


@EngineRegistry.register(model_type="language_model", backend=["fsdp2"], device="cpu")
class CPULanguageEngine(_OnCPU, FSDPEngineWithLMHead):
    """The policy and the reference policy."""


@EngineRegistry.register(model_type="value_model", backend=["fsdp2"], device="cpu")
class CPUValueEngine(_OnCPU, FSDPEngineWithValueHead):
    """The critic."""

    def _build_module(self) -> Any:
        from transformers import AutoModelForTokenClassification

        config = self.model_config.hf_config
        config.num_labels = 1
        config.classifier_dropout = 0.0
        # verl names flash_attention_2 here, whatever the configuration says.
        return AutoModelForTokenClassification.from_pretrained(
            self.model_config.local_path, config=config, dtype=torch.float32
        )
