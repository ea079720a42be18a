"""The core's tracer contract, over the tracer of this session."""

from agl.testing.tracer_contract import *  # noqa: F403
