"""Algorithms."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .apo import *
    from .base import *
    from .decorator import *
    from .fast import *
    from .verl import *
