"""When a deadline has passed: the clock by which a store judges, and the thread that looks."""

import logging
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial

from agl.errors import StoreUnavailableError

logger = logging.getLogger(__name__)

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


class Watchdog:
    """Calls ``scan`` at intervals, once started.

    ``scan`` is a bound method; the thread ends when its object is gone.
    """

    def __init__(self, scan: Callable[[], object], interval_seconds: float) -> None:
        self._scan = weakref.WeakMethod(scan)
        self._interval = interval_seconds
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; a second call does nothing."""
        with self._lock:
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(
                    target=self._run, name="agl-store-watchdog", daemon=True
                )
                self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it; for good."""
        with self._lock:
            self._stop.set()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            scan = self._scan()
            if scan is None:
                return
            try:
                scan()
            except StoreUnavailableError:
                pass  # the store has said so in its log, and looks again when it is better
            except Exception:
                # The next scan may succeed; without one, no attempt would ever time out.
                logger.exception("looking for overdue attempts failed; trying again")
            del scan
