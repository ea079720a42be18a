"""The clock by which a store judges heartbeats and deadlines."""

import time
from functools import partial

if hasattr(time, "CLOCK_BOOTTIME"):  # goes on while the machine sleeps, as the time of day does
    _elapsed = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
else:
    _elapsed = time.monotonic


class StoreClock:
    """Unix seconds that only ever pass: the time of day when it was made, and what passed since.

    The time of day may be set, by a person or by NTP; an attempt that is well must not time out by
    that, nor one that is lost live on. A store that is opened anew reads the time of day anew.
    """

    def __init__(self) -> None:
        self._offset = time.time() - _elapsed()

    def now(self) -> float:
        """The time."""
        return self._offset + _elapsed()
