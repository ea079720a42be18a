"""The contract of a runner."""

from agl import Runner as Runner
