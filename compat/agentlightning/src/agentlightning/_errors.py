"""Errors of agl that are also of the kind that 0.3 raised, and one of our own."""

from collections.abc import Generator
from contextlib import contextmanager

from agl.errors import AglError, ConfigError, TracerError


class RefusedNameError(AglError):
    """A name of Agent Lightning that agl does not have; the message says what to use instead."""


class RefusedImportError(RefusedNameError, ImportError):
    """The same, where ``from module import name`` asks for it."""


class RefusedAttributeError(RefusedNameError, AttributeError):
    """The same, where it is asked for as an attribute: ``hasattr`` says no."""


class WrongAgentError(ConfigError, NotImplementedError):
    """A function has other parameters than an agent."""


class SlowAlgorithmError(ConfigError, TypeError):
    """``Trainer.dev`` runs fast algorithms only."""


class ActiveTracerError(TracerError, ValueError):
    """Another tracer is active."""


class RewardError(TypeError, ValueError):
    """A reward is no number."""


class ObjectError(ValueError, RuntimeError):
    """An object cannot be written as JSON."""


@contextmanager
def raised_as(kind: type[Exception], *caught: type[Exception]) -> Generator[None]:
    """Raise what is caught as ``kind``, with the same words."""
    try:
        yield
    except caught as error:
        raise kind(str(error)) from error
