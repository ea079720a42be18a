"""What verl loads of us in every process: the entry point of its group ``verl.plugins``.

verl imports this module at the end of ``import verl``, in the driver and in each of Ray's workers,
so it is light: it tells verl's registries names, and imports neither trainers nor engines.

verl swallows an error of an entry point (a line in the debug log), and the run would go on without
our parts. ``check_registered`` says what is wrong instead; a run calls it before it starts.
"""

import os
from importlib.metadata import entry_points
from typing import Any

from agl.errors import ConfigError, install_line

ENTRY_POINT = "agl_verl"
GROUP = "verl.plugins"


def register_platform() -> None:
    """Make the CPU platform known under its name; it is never chosen by itself."""
    from verl.plugin.platform import PlatformRegistry

    from agl_verl.cpu.config import PLATFORM
    from agl_verl.cpu.platform import CPUPlatform

    if PlatformRegistry.get(PLATFORM) is not CPUPlatform:
        PlatformRegistry.register(platform=PLATFORM)(CPUPlatform)


def register_inference() -> None:
    """Make the inference server for tests known; imports verl's rollout modules, which are heavy.

    Called where those are in use: by ``agl_verl.cpu.workers``, ``trainers`` and ``checkpoint``.
    """
    from verl.workers.rollout import base
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    from agl_verl.cpu.config import INFERENCE

    RolloutReplicaRegistry.register(INFERENCE, _load_replica)
    # verl has no public call for the part that receives weights: a dictionary of names. The
    # contract tests say so when a release moves it.
    base._ROLLOUT_REGISTRY[(INFERENCE, "async")] = "agl_verl.cpu.inference.WeightReceiver"


def _load_replica() -> type[Any]:
    from agl_verl.cpu.inference import CPUReplica

    return CPUReplica


def check_registered() -> None:
    """Make sure that verl has loaded this module as its plugin.

    Raises:
        ConfigError: The environment keeps verl from loading it, the entry point is not installed,
            or loading it fails; the message says which, and the cause is attached.
    """
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip().lower()
    named = {name.strip() for name in policy.split(",")}
    if policy != "auto" and ENTRY_POINT not in named:
        raise ConfigError(
            f"verl loads no plugin {ENTRY_POINT!r}, as VERL_USE_EXTERNAL_PLUGINS is {policy!r}; "
            f"unset it or set it to 'auto'"
        )
    found = [entry for entry in entry_points(group=GROUP) if entry.name == ENTRY_POINT]
    if not found:
        raise ConfigError(
            f"no entry point {ENTRY_POINT!r} in the group {GROUP!r}: the metadata of agl-verl is "
            f"missing or old. Run: {install_line('--force-reinstall', 'agl-verl')}"
        )
    import verl

    try:
        for entry in found:
            entry.load()
        register_platform()
    except Exception as error:
        raise ConfigError(
            f"verl {verl.__version__} cannot load the plugin {ENTRY_POINT!r} and would go on "
            f"without it: {type(error).__name__}: {error}"
        ) from error


register_platform()
