"""Prompt optimisation."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .apo import *
