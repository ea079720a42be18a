"""When Python looks for objects that only refer to each other.

A library of models makes half a million objects. A look at them all stops every thread of the
process, the sampler's and the gateway's too, for nearly half a second of CPU.
"""

import contextlib
import functools
import gc
from collections.abc import Generator

_num_settled = 0
"""Of the blocks that are ``settled`` now."""


@contextlib.contextmanager
def without_collections() -> Generator[None]:
    """A block, or with ``@`` a function, in which no garbage is looked for.

    For what imports torch and transformers: looking through all that these make takes a fifth of
    the time, and finds nothing.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if not (have_others_frozen() or _num_settled):
                # Both together make all objects old, without a look at them.
                gc.freeze()
                gc.unfreeze()
            gc.enable()


@contextlib.contextmanager
def settled() -> Generator[None]:
    """A block that looks for garbage only among what it makes."""
    global _num_settled
    is_ours = not (have_others_frozen() or _num_settled)
    _num_settled += 1
    if is_ours:
        gc.freeze()
    try:
        yield
    finally:
        _num_settled -= 1
        if is_ours:
            gc.unfreeze()


@functools.cache
def have_others_frozen() -> bool:
    """Whether there was something frozen when this was first asked; it stays as it is.

    Asked once, as Python counts what is frozen one by one.
    """
    return gc.get_freeze_count() > 0
