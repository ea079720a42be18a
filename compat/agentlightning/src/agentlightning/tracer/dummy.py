"""A tracer that keeps nothing."""

from agl import DummyTracer as DummyTracer
