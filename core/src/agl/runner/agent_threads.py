"""Where agents run: an event loop in a thread for coroutines, and threads for plain functions."""

import asyncio
import contextlib
import logging
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import psutil

from agl.utils.text import describe

logger = logging.getLogger(__name__)

CANCEL_SECONDS = 2.0
"""So long a cancelled coroutine may clean up before it counts as stuck."""
LOOK_SECONDS = 0.1
"""How often the runner asks the agents' loop for a sign of life."""

current_call: ContextVar[object | None] = ContextVar("agl_call", default=None)
"""The call of an agent in whose context code runs."""


class AgentTask(asyncio.Task[Any]):
    """A task on the agents' loop, which knows in whose call it was made."""

    def __init__(self, coroutine: Any, **options: Any) -> None:
        self.owner = current_call.get()
        super().__init__(coroutine, **options)


class AgentLoop:
    """A thread with an event loop for coroutine agents.

    They do not share the runner's loop, so that one that blocks stops neither the deadlines nor the
    heartbeats. A loop that an agent stops goes on; ``SystemExit`` and ``KeyboardInterrupt`` in a
    task of an agent end that task and not the loop.

    Raises:
        OSError: There is no file descriptor left for a loop.
        RuntimeError: There can be no further thread.
    """

    def __init__(self) -> None:
        self.lost: str | None = None
        """Why nothing more is run on it, once that is so."""
        self._ending = False
        self._pinged = False
        self._looked_at = time.monotonic()
        self._silent = 0.0
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.loop = self._runner.get_loop()
        self.loop.set_task_factory(make_task)
        self.is_sound = True
        """No agent has shut down the threads that it gives others."""
        self.loop.shutdown_default_executor = self._shut_threads_down
        self._thread = threading.Thread(target=self._main, name="agl-agents", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._runner.close()
            raise

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        # What an agent left behind, or broke, must not reach this thread's end as an exception.
        with contextlib.suppress(Exception), self._runner:
            while not self._ending:
                try:
                    self.loop.run_forever()
                except (KeyboardInterrupt, SystemExit) as error:
                    # A task of an agent raised it and has ended; the others go on.
                    logger.warning("a task that an agent left behind raised %r", type(error))
                except BaseException as error:
                    self.lost = f"broke their event loop: {type(error).__name__}: {describe(error)}"
                    return

    def _shut_threads_down(self, *args: Any, **options: Any) -> Any:
        self.is_sound = False
        return type(self.loop).shutdown_default_executor(self.loop, *args, **options)

    def submit(self, start: Callable[[], object], **options: Any) -> None:
        """Have ``start`` called on the loop.

        Raises:
            RuntimeError: The loop is closed.
        """
        self.loop.call_soon_threadsafe(start, **options)

    def silence(self) -> float:
        """For how many seconds the loop has not answered; to be asked every ``LOOK_SECONDS``.

        Time in which nobody asked does not count: the whole process may have stood still.
        """
        now = time.monotonic()
        passed, self._looked_at = min(now - self._looked_at, 2 * LOOK_SECONDS), now
        if not self._thread.is_alive() or self.loop.is_closed():
            self.lost = self.lost or "closed their event loop"
        elif not self._pinged:
            self._silent = 0.0
            self._pinged = True
            with contextlib.suppress(RuntimeError):  # closed in this moment: seen next time
                self.loop.call_soon_threadsafe(self._pong)
        else:
            self._silent += passed
        return self._silent

    def _pong(self) -> None:
        self._pinged = False

    def at_work(self) -> tuple[object | None, str]:
        """The call whose code runs at this moment, if one can be told, and where it is."""
        task = asyncio.current_task(self.loop)
        frame = sys._current_frames().get(self._thread.ident or 0)  # pyright: ignore[reportPrivateUsage]
        lines = traceback.format_stack(frame) if frame else []
        # From the agent's own code on: not how its loop came to call it.
        own = [n for n, line in enumerate(lines) if asyncio.events.__file__ in line]
        where = "".join(lines[own[-1] + 1 :] if own else lines)
        return getattr(task, "owner", None), where

    def cpu_seconds(self) -> float:
        """How long a processor has worked for its thread; 0 where the system does not say."""
        threads = {one.id: one for one in psutil.Process().threads()}
        found = threads.get(self._thread.native_id or 0)
        return 0.0 if found is None else found.user_time + found.system_time

    def stop(self, *, wait: bool = True) -> None:
        """End the thread; tasks that agents left behind are cancelled."""
        self._ending = True
        with contextlib.suppress(RuntimeError):  # it is closed
            self.loop.call_soon_threadsafe(self.loop.stop)
        if wait and self.lost is None:
            self._thread.join(CANCEL_SECONDS)


def make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> AgentTask:
    """The task factory of the agents' loop."""
    return AgentTask(coroutine, loop=loop, **options)


class AgentThreads:
    """Daemon threads for plain functions; one that never returns is missed by nobody.

    A thread that is done serves the next call: starting one costs more than a trivial agent.
    """

    def __init__(self) -> None:
        self._idle: list[queue.SimpleQueue[Callable[[], object] | None]] = []
        self._stopped = False
        self._lock = threading.Lock()

    def submit(self, work: Callable[[], object]) -> None:
        """Do ``work`` in an idle thread, or in a new one."""
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            inbox = queue.SimpleQueue[Callable[[], object] | None]()
            threading.Thread(
                target=self._serve, args=(inbox,), name="agl-agent", daemon=True
            ).start()
        inbox.put(work)

    def _serve(self, inbox: "queue.SimpleQueue[Callable[[], object] | None]") -> None:
        while (work := inbox.get()) is not None:
            work()
            del work  # what an agent holds is not kept while the thread is idle
            with self._lock:
                if self._stopped:
                    return
                self._idle.append(inbox)

    def stop(self) -> None:
        """End the threads as soon as they are idle."""
        with self._lock:
            self._stopped = True
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)
