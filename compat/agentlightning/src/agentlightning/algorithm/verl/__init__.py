"""Reinforcement learning with verl."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .interface import *
