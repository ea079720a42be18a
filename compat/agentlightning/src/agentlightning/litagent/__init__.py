"""Agents."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .decorator import *
    from .litagent import *
