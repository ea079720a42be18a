"""verl's trainers on the CPU: ``on_cpu(trainer_class)`` gives the same trainer with CPU workers.

The three trainers of verl are registered as ``agl_cpu_sync``, ``agl_cpu_colocate_async`` and
``agl_cpu_separate_async``, for ``trainer.v1.trainer_mode`` of a stock verl run with
``VERL_USE_EXTERNAL_MODULES=agl_verl.cpu.trainers``.
"""

from functools import cache
from typing import Any

# Before all of verl's workers: they ask for the platform when they are imported, and
# VERL_USE_EXTERNAL_MODULES comes before the entry points.
from agl_verl.cpu.registration import register_inference, register_platform

register_platform()

import ray  # noqa: E402
from verl.trainer.ppo.v1 import register_trainer  # noqa: E402
from verl.utils.device import get_device_name  # noqa: E402

from agl_verl.stock import STOCK  # noqa: E402

register_inference()

POLL_SECONDS = 0.2
"""How often the trainer looks for finished rollouts; verl's own 2 seconds are longer than a step of
a tiny model."""


@cache
def on_cpu(trainer_class: type) -> type:
    """The trainer with workers for the CPU and a short polling time, else unchanged.

    Args:
        trainer_class: A subclass of verl's ``PPOTrainer``.

    Raises:
        RuntimeError: When the trainer starts, and verl's platform is not the CPU.
    """
    detached = issubclass(trainer_class, STOCK["separate_async"])

    class OnCPU(trainer_class):
        def _build_replay_buffer(self) -> Any:
            buffer = super()._build_replay_buffer()
            buffer.poll_interval = POLL_SECONDS
            return buffer

        def _init_resource_pool_mgr(self) -> None:
            if get_device_name() != "cpu":
                raise RuntimeError(
                    f"verl's device is {get_device_name()!r}, expected 'cpu'; set the environment "
                    f"variable VERL_PLATFORM=agl_cpu before verl is imported "
                    f"(agl_verl.cpu.use_cpu() does)"
                )
            from agl_verl.cpu.workers import worker_for

            super()._init_resource_pool_mgr()
            for role in list(self.role_worker_mapping):
                worker = worker_for(role, detached=detached)
                self.role_worker_mapping[role] = ray.remote(worker)

    OnCPU.__name__ = OnCPU.__qualname__ = f"{trainer_class.__name__}OnCPU"
    return OnCPU


def _register_stock() -> None:
    """Register verl's own trainers; verl branches on the mode's name, so it gets the stock one."""
    for mode, stock in STOCK.items():

        class Stock(on_cpu(stock)):  # type: ignore[misc]
            _mode = mode

            def __init__(self, config: Any) -> None:
                config.trainer.v1.trainer_mode = self._mode
                super().__init__(config)

        Stock.__name__ = Stock.__qualname__ = f"Stock{stock.__name__}OnCPU"
        register_trainer(f"agl_cpu_{mode}")(Stock)


_register_stock()
