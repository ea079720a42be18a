"""Events that end a run."""

from agl import MultiprocessingEvent as MultiprocessingEvent
from agl.execution.base import *
