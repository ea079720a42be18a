"""Adapters: what an algorithm learns from, made of spans."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base import *
    from .messages import *
    from .triplet import *
