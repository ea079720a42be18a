"""Tracers."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .agentops import *
    from .base import *
    from .dummy import *
    from .otel import *
    from .weave import *
