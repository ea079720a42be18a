"""Stores."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base import *
    from .client_server import *
    from .memory import *
    from .threading import *
