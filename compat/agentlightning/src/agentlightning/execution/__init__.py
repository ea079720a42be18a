"""Execution strategies: where algorithm and runners run."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base import *
    from .client_server import *
    from .events import *
    from .shared_memory import *
