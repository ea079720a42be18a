"""When Python looks for objects that only refer to each other."""

import contextlib
import gc
from collections.abc import Generator


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
            if gc.get_freeze_count() == 0:
                # Both together make all objects old, without a look at them.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
