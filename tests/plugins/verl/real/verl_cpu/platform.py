"""A CPU platform for verl's platform registry: the device on which training can be tested.

verl asks its platform for a ``torch.<device>`` module and calls memory and random-number functions
on it that ``torch.cpu`` does not have; ``_CPUModule`` answers those and passes the rest on.

The platform is never chosen by itself (``is_platform_available`` says no), only by its name.
"""

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from verl.plugin.platform import PlatformBase


def _nothing(*_: Any, **__: Any) -> None:
    """What a device would do, and a CPU has no need of."""


class _CPUModule(types.ModuleType):
    """``torch.cpu``, and what verl calls on ``torch.cuda`` besides."""

    def __init__(self) -> None:
        super().__init__(f"{__name__}.torch_cpu")
        self.empty_cache = self.reset_peak_memory_stats = self.ipc_collect = _nothing
        self.manual_seed = self.manual_seed_all = torch.manual_seed
        self.get_rng_state = lambda *_: torch.get_rng_state()
        self.set_rng_state = lambda state, *_: torch.set_rng_state(state)
        self.get_device_name = lambda *_: "CPU"
        self.mem_get_info = lambda *_: (0, 0)
        self.max_memory_allocated = self.max_memory_reserved = lambda *_: 0
        self.memory_allocated = self.memory_reserved = lambda *_: 0

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    # verl compares the device module with torch.cpu where it counts operations and measures time.
    def __eq__(self, other: object) -> bool:
        return other is self or other is torch.cpu

    def __hash__(self) -> int:
        return hash(torch.cpu)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_cpu_module, ())


_CPU = _CPUModule()


def _cpu_module() -> _CPUModule:
    return _CPU


class CPUPlatform(PlatformBase):
    """What verl asks of a device, answered for the CPU."""

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "agl"

    @property
    def device_module(self) -> Any:
        return _CPU

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False

    def is_available(self) -> bool:
        return True

    def current_device(self) -> torch.device:
        # verl gives this to Tensor.to(); a number would mean cuda:<number>.
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    set_device = synchronize = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = cudart = _nothing

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return (None, None)

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "AGL_CPU_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def ray_resource_name(self) -> str:
        # verl counts resources of this name. cpu_config() declares as many as it has ranks; Ray
        # looks at no hardware for a declared number.
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False
