"""The names; each is imported when it is first used."""

from .init_utils import (
    build_component as build_component,
)
from .trainer import (
    Trainer as Trainer,
)
