"""What other servers queued and ended: told by ``NOTIFY``, and looked for each second."""

import logging
import os
import select
import threading
import time
import weakref
from collections.abc import Callable

from agl_postgres.lookups import Connection

logger = logging.getLogger("agl.store")

PAUSE_SECONDS = 0.005
"""Between two rings: whoever commits a ``NOTIFY`` locks out all others who do."""
LOOK_SECONDS = 1.0
"""A ring may be lost, with its connection or with the server that would have rung."""


class Doorbell:
    """A thread that rings for other servers, and answers their rings.

    A ring says only that something is new; who hears it looks for himself. So one ring stands for
    all that happened within ``PAUSE_SECONDS``.

    Args:
        connect: Makes a connection that commits by itself.
        answer: A bound method, whose object the thread does not keep alive. Called with the
            connection, and whether this is a look that no ring asked for: ``LOOK_SECONDS`` after
            the last one, and after the connection was lost.
    """

    def __init__(
        self, connect: Callable[[], Connection], answer: Callable[[Connection, bool], None]
    ) -> None:
        self._connect = connect
        self._answer = weakref.WeakMethod(answer)
        self._is_rung = False
        self._look = self._rang = 0.0
        """When to look, whether it rings or not."""
        self._end, self._wake = os.pipe()
        self._over = threading.Event()
        self._lock = threading.RLock()  # a collected store may call stop() in the middle of ring()
        self._thread = threading.Thread(target=self._run, name="agl-store-doorbell", daemon=True)
        self._thread.start()

    def ring(self) -> None:
        """Tell the other servers, soon; from any thread."""
        with self._lock:
            if not self._is_rung and not self._over.is_set():
                self._is_rung = True
                os.write(self._wake, b".")

    def stop(self, seconds: float | None = None) -> None:
        """End the thread, once it has rung for what was committed; wait for it so long."""
        with self._lock:
            if self._over.is_set():
                return
            self._over.set()
            os.write(self._wake, b".")
        if threading.current_thread() is not self._thread:  # which may collect garbage
            self._thread.join(seconds)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                with self._connect() as connection:
                    connection.execute("SET synchronous_commit = off")  # a ring may be lost
                    own = "SELECT 'agl_' || 'agl_version'::regclass::oid"
                    ((self._channel,),) = connection.execute(own).fetchall()
                    connection.execute(f"LISTEN {self._channel}".encode())
                    self._look = 0.0
                    while not self._over.is_set():
                        self._wait(connection)
                    self._ring(connection)
            except Exception as error:  # without this thread, no other server is heard
                logger.warning("other servers are not heard: %s; connecting again", error)
                self._over.wait(LOOK_SECONDS)
        with self._lock:
            os.close(self._wake)
            os.close(self._end)

    def _wait(self, connection: Connection) -> None:
        poll = select.poll()  # select() takes no number above 1023
        poll.register(connection.fileno(), select.POLLIN)
        poll.register(self._end, select.POLLIN)
        rang = _rang(connection)  # while the last ring was answered, which no poll tells
        seconds = 0.0 if rang else max(0.0, self._look - time.monotonic())
        ready = {one for one, _ in poll.poll(1000 * seconds)}
        is_look = time.monotonic() >= self._look
        if self._end in ready:
            os.read(self._end, 4096)
            time.sleep(max(0.0, self._rang + PAUSE_SECONDS - time.monotonic()))
            self._ring(connection)
            self._rang = time.monotonic()
        if (is_look or _rang(connection) or rang) and (answer := self._answer()) is not None:
            answer(connection, is_look)
        if is_look:
            self._look = time.monotonic() + LOOK_SECONDS

    def _ring(self, connection: Connection) -> None:
        with self._lock:
            self._is_rung = False
        connection.execute(f"NOTIFY {self._channel}".encode())


def _rang(connection: Connection) -> set[int]:
    return {one.pid for one in connection.notifies(timeout=0)} - {connection.info.backend_pid}
