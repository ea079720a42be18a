"""Reinforcement learning with verl; needs agl-verl."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agl_verl import VERL as VERL
