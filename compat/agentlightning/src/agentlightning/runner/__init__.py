"""Runners."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .agent import *
    from .base import *
    from .legacy import *
