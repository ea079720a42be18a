"""The options of agl that verl's configuration has no place for."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Options:
    """What ``VERL`` was given beside verl's configuration; goes to verl's process."""

    max_failed_groups: int | None = None
    """See ``VERL``."""
    trainer_cls: Any = None
    """A class, or its path."""
    manager_cls: Any = None
