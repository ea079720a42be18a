"""What of this package verl finds by name: the platform, the inference server."""

from typing import Any

from agl_verl.cpu.config import INFERENCE, PLATFORM


def register_platform() -> None:
    """Make the CPU platform known under its name; it is never chosen by itself."""
    from verl.plugin.platform import PlatformRegistry

    from agl_verl.cpu.platform import CPUPlatform

    if PlatformRegistry.get(PLATFORM) is not CPUPlatform:
        PlatformRegistry.register(platform=PLATFORM)(CPUPlatform)


def register_inference() -> None:
    """Make the inference server known; imports verl's rollout modules, which are heavy.

    Called where those are in use: by ``workers``, ``trainers`` and ``checkpoint``.
    """
    from verl.workers.rollout import base
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register(INFERENCE, _load_replica)
    # verl has no public call for the part that receives weights: a dictionary of names. The
    # contract tests say so when a release moves it.
    base._ROLLOUT_REGISTRY[(INFERENCE, "async")] = "agl_verl.cpu.inference.WeightReceiver"


def _load_replica() -> type[Any]:
    from agl_verl.cpu.inference import CPUReplica

    return CPUReplica
