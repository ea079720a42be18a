"""The trainer."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .init_utils import *
    from .trainer import *
