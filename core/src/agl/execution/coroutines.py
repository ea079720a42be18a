"""Coroutines that run beside each other: in threads with event loops of their own, or as tasks."""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from agl.errors import AglError

T = TypeVar("T")


class UnaskedCancellationError(AglError, RuntimeError):
    """A coroutine ended as if it had been cancelled."""

    def __init__(self) -> None:
        super().__init__("its code raised a CancelledError, though nobody cancelled it")


class BackgroundCoroutine:
    """One of several coroutines of a run: a task of the running loop, or a thread with its own.

    Args:
        main: Makes the coroutine, on the loop that runs it.
        thread_name: Runs it in a daemon thread of this name; None runs it as a task.
    """

    def __init__(
        self, main: Callable[[], Coroutine[Any, Any, object]], *, thread_name: str | None
    ) -> None:
        self._here = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._here.create_future()
        """Done when it has ended, in whatever way."""
        self.error: BaseException | None = None
        """What ended it; being cancelled by ``cancel`` does not count."""
        self._main = main
        self._thread_name = thread_name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[object] | None = None
        self._was_stopped = False

    def start(self) -> None:
        """Begin."""
        if self._thread_name is None:
            self._loop, self._task = self._here, self._here.create_task(self._main())
            self._task.add_done_callback(self._task_done)
        else:
            # A daemon: an agent that never returns must not keep the process alive.
            threading.Thread(target=self._thread, name=self._thread_name, daemon=True).start()

    def cancel(self) -> None:
        """Cancel it, without waiting."""
        self._was_stopped = True
        if self._loop is not None and self._task is not None:
            # The loop may close at this moment, by ending on its own.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._task.cancel)

    def _thread(self) -> None:
        error: BaseException | None = None
        try:
            asyncio.run(self._run_in_thread())
        except BaseException as raised:
            error = raised
        self._end(error)

    async def _run_in_thread(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if not self._was_stopped:
            await self._main()

    def _task_done(self, task: "asyncio.Task[object]") -> None:
        self._end(asyncio.CancelledError() if task.cancelled() else task.exception())

    def _end(self, error: BaseException | None) -> None:
        if isinstance(error, asyncio.CancelledError):
            error = None if self._was_stopped else UnaskedCancellationError()
        self.error = error
        with contextlib.suppress(RuntimeError):  # nobody waits any more: that loop is closed
            self._here.call_soon_threadsafe(self.ended.set_result, None)


async def call_in_daemon_thread(function: Callable[[], T]) -> T:
    """Call ``function`` in a daemon thread and await its result.

    Unlike with ``asyncio.to_thread``, a cancelled call is abandoned: it keeps neither the loop from
    closing nor the process from ending.
    """
    result: concurrent.futures.Future[T] = concurrent.futures.Future()
    result.set_running_or_notify_cancel()  # who awaits may be cancelled, and the call goes on
    context = contextvars.copy_context()

    def run() -> None:
        try:
            result.set_result(context.run(function))
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="agl-call", daemon=True).start()
    return await asyncio.wrap_future(result)
