"""Coroutines that run beside each other: in threads with event loops of their own, or as tasks."""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from agl.errors import AglError

T = TypeVar("T")
Main = Callable[[], Coroutine[Any, Any, object]]


class UnaskedCancellationError(AglError, RuntimeError):
    """A coroutine ended as if it had been cancelled."""

    def __init__(self) -> None:
        super().__init__(
            "it ended by a CancelledError, though nobody cancelled it: it raised that itself, or a "
            "hook, a tracer, the store or other code that it called did"
        )


class Side(Protocol):
    """One of several coroutines that make up a run."""

    @property
    def error(self) -> BaseException | None:
        """What ended it; being cancelled by ``cancel`` does not count."""
        ...

    def start(self) -> None:
        """Begin."""
        ...

    def is_alive(self) -> bool:
        """Whether it has begun and not ended."""
        ...

    def cancel(self) -> None:
        """Cancel it; does not wait."""
        ...


class TaskSide:
    """A coroutine as a task of the running loop.

    Args:
        main: Makes the coroutine.
        on_done: Called when it has ended, however it ended.
    """

    def __init__(self, main: Main, on_done: Callable[[], None]) -> None:
        self._main = main
        self._on_done = on_done
        self._was_stopped = False
        self._task: asyncio.Task[object] | None = None

    @property
    def error(self) -> BaseException | None:
        """What ended the coroutine; being cancelled by ``cancel`` does not count."""
        if self._task is None or not self._task.done():
            return None
        if self._task.cancelled():
            return None if self._was_stopped else UnaskedCancellationError()
        return self._task.exception()

    def start(self) -> None:
        """Create the task."""
        self._task = asyncio.ensure_future(self._main())
        self._task.add_done_callback(lambda _: self._on_done())

    def is_alive(self) -> bool:
        """Whether the task has not ended."""
        return self._task is not None and not self._task.done()

    def cancel(self) -> None:
        """Cancel the task."""
        self._was_stopped = True
        if self._task is not None:
            self._task.cancel()


class ThreadSide:
    """A coroutine in a daemon thread with an event loop of its own.

    Args:
        main: Makes the coroutine, in the new thread.
        on_done: Called in the new thread when the coroutine has ended, however it ended.
        name: Of the thread.
    """

    def __init__(self, main: Main, on_done: Callable[[], None], *, name: str) -> None:
        self._error: BaseException | None = None
        self._ended = False
        self._was_stopped = False
        self._main = main
        self._on_done = on_done
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[object] | None = None
        # A daemon: an agent that never returns must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def error(self) -> BaseException | None:
        """What ended the coroutine; being cancelled by ``cancel`` does not count."""
        return self._error

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether the coroutine has not ended."""
        # Not the thread's own flag: ``on_done`` is called while the thread still lives.
        return not self._ended

    def cancel(self) -> None:
        """Cancel the coroutine."""
        self._was_stopped = True
        loop, task = self._loop, self._task
        if loop is not None and task is not None:
            # The loop may close between the two lines, by ending on its own.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(task.cancel)

    def _run(self) -> None:
        try:
            asyncio.run(self._start())
        except asyncio.CancelledError:
            if not self._was_stopped:
                self._error = UnaskedCancellationError()
        except BaseException as error:
            self._error = error
        finally:
            self._ended = True
            self._on_done()

    async def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        await self._main()


async def call_in_daemon_thread(function: Callable[[], T]) -> T:
    """Call ``function`` in a daemon thread and await its result.

    Unlike with ``asyncio.to_thread``, a cancelled call is abandoned: it keeps neither the loop from
    closing nor the process from ending.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def run() -> None:
        result, error = None, None
        try:
            result = context.run(function)
        except BaseException as raised:
            error = raised
        # A closed loop means that nobody waits any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(deliver, result, error)

    threading.Thread(target=run, name="agl-call", daemon=True).start()
    return await future
