"""The contract of an execution strategy."""

from agl.execution.base import *
