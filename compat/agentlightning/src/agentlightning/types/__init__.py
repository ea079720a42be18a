"""Records."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .core import *
    from .resources import *
    from .tracer import *
