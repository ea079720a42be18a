"""The model that a run began with, which its folder keeps where something is compared with it."""

from pathlib import Path

from agl.errors import ConfigError

REFERENCE = "reference"
"""Its folder, in that of the run."""


def find_reference(owner: str, is_adapter: bool, *folders: Path) -> Path:
    """Where the start of a run is.

    Args:
        owner: What messages begin with.
        is_adapter: Whether an adapter is built on it.
        folders: Of runs, in which it is looked for.

    Raises:
        ConfigError: It is not there.
    """
    for folder in folders:
        if (folder / REFERENCE).is_dir():
            return folder / REFERENCE
    needs, way = "kl compares with", "Set kl.coefficient to 0"
    if is_adapter:
        needs, way = "lora builds on", "Put it back"
    raise ConfigError(
        f"{owner}: {needs} the model that the run began with, and neither "
        f"{' nor '.join(repr(str(folder)) for folder in folders)} has the folder "
        f"{REFERENCE!r}. {way}, or start anew"
    )
