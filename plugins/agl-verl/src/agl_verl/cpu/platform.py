"""A CPU platform for verl's platform registry: the device on which training can be tested.

verl asks its platform for a ``torch.<device>`` module and calls memory and random-number functions
on it that ``torch.cpu`` does not have; ``_CPUModule`` answers those and passes the rest on.

The platform is never chosen by itself (``is_platform_available`` says no): on the head node of a
GPU cluster, which has no GPU, verl would otherwise train on the CPU. Ask for it by the environment
variable ``VERL_PLATFORM=agl_cpu``, before ``verl`` is imported; ``cpu_environment()`` has it.
"""

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from verl.plugin.platform import PlatformBase


class _CPUModule(types.ModuleType):
    """``torch.cpu``, and what verl calls on ``torch.cuda`` besides."""

    def __init__(self) -> None:
        super().__init__("agl_verl.cpu.torch_cpu")

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    # verl compares the device module with torch.cpu where it counts operations and measures time.
    def __eq__(self, other: object) -> bool:
        return other is self or other is torch.cpu

    def __hash__(self) -> int:
        return hash(torch.cpu)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_cpu_module, ())

    @staticmethod
    def max_memory_allocated(*_: Any) -> int:
        return 0

    max_memory_reserved = memory_allocated = memory_reserved = max_memory_allocated

    @staticmethod
    def mem_get_info(*_: Any) -> tuple[int, int]:
        return (0, 0)

    @staticmethod
    def empty_cache() -> None:
        return None

    @staticmethod
    def reset_peak_memory_stats(*_: Any) -> None:
        return None

    @staticmethod
    def ipc_collect() -> None:
        return None

    @staticmethod
    def get_device_name(*_: Any) -> str:
        return "CPU"

    @staticmethod
    def manual_seed(seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    @staticmethod
    def get_rng_state(*_: Any) -> torch.Tensor:
        return torch.get_rng_state()

    @staticmethod
    def set_rng_state(state: torch.Tensor, *_: Any) -> None:
        torch.set_rng_state(state)


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
        """Never: it is asked for by name, see the module's docstring."""
        return False

    def is_available(self) -> bool:
        return True

    def current_device(self) -> torch.device:
        # verl gives this to Tensor.to(); a number would mean cuda:<number>.
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: Any) -> None:
        return None

    def synchronize(self, device_index: int | None = None) -> None:
        return None

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        return None

    def empty_cache(self) -> None:
        return None

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return (None, None)

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "AGL_CPU_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        return None

    def profiler_stop(self) -> None:
        return None

    def ray_resource_name(self) -> str:
        # verl counts resources of this name. cpu_config() declares as many as it has ranks; Ray
        # looks at no hardware for a declared number.
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None
