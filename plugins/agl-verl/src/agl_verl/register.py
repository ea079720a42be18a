"""What verl loads of us in every process: the entry point of its group ``verl.plugins``.

verl imports this module at the end of ``import verl``, in the driver and in each of Ray's workers,
so it is light: it tells verl's registries of the CPU platform, which a configuration may ask for as
for any other, and imports neither trainers nor engines.

verl swallows an error of an entry point (a line in the debug log), and the run would go on without
our parts. ``check_registered`` says what is wrong instead; a run calls it before it starts.
"""

import os
from importlib.metadata import entry_points

from agl.errors import ConfigError, install_line
from agl_verl.cpu.registration import register_platform

ENTRY_POINT = "agl_verl"
GROUP = "verl.plugins"


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
