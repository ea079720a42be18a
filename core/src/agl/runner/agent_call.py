"""One call of an agent, which ends at its deadline or when it is stopped, and where it runs.

A plain function gets a thread of its own. Coroutines share ``AgentLoop``, an event loop in a thread
apart from the runner's, so that an agent that blocks it stops neither deadlines nor heartbeats.
"""

import asyncio
import contextlib
import contextvars
import inspect
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

from agl.errors import AgentResultError, AglError, RolloutTimeoutError
from agl.runner.report import Outcome, name_of
from agl.types import Attempt
from agl.utils.text import describe

logger = logging.getLogger(__name__)

CANCEL_SECONDS = 2.0
"""A cancelled coroutine may clean up for this long before it counts as stuck."""
BLOCKED = (
    "an agent blocked the event loop that they share. A coroutine agent must not block: await "
    "instead (asyncio.to_thread, an asynchronous client), or make the agent a plain function"
)
_OUR_MODULES = (__name__, "agl.agent.base", "agl.agent.function")


class RolloutCancelledError(AglError, RuntimeError):
    """An attempt was stopped before its agent was done."""


class AgentLoop:
    """The thread and event loop of the coroutine agents of one runner."""

    def __init__(self) -> None:
        self.calls: set[AgentCall] = set()
        """The calls that run on it."""
        self.is_lost = False
        """It is broken or blocked; the next agents need a new one."""
        self._is_ending = False
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._run, name="agl-agents", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._runner.close()
            raise

    def _run(self) -> None:
        # What an agent broke, or left behind, must not reach this thread's end as an exception.
        with contextlib.suppress(Exception), self._runner:
            while not self._is_ending:
                try:
                    self.loop.run_forever()
                except (KeyboardInterrupt, SystemExit) as error:
                    # The task that raised it has ended with it, and the others go on.
                    logger.warning("a task of an agent raised %r", error)
                except Exception as error:
                    self.give_up(f"an agent broke their event loop: {describe(error)}")

    def give_up(self, why: str = BLOCKED) -> None:
        """End all calls on this loop as lost; from any thread."""
        self.is_lost = True
        for call in list(self.calls):
            call.stop("lost", why)
        self._end()

    def stop(self) -> None:
        """Cancel what agents left behind, and end the thread."""
        self._end()
        if not self.is_lost:
            self._thread.join(CANCEL_SECONDS)

    def _end(self) -> None:
        self._is_ending = True
        with contextlib.suppress(RuntimeError):  # it is closed
            self.loop.call_soon_threadsafe(self.loop.stop)


class AgentCall:
    """Calls an agent's method, and ends the call when it must end.

    Args:
        method: ``LitAgent.rollout_method(...)``, or what stands for it.
        read: Makes of the result what is stored; see ``read_result``.
        timeout: Seconds from ``began`` until it is stopped; None for no limit.
        began: When the attempt began, by ``time.monotonic()``; the store counts from then, too.
        agent_loop: Gives the loop for a coroutine; None runs it on the caller's loop.
    """

    def __init__(
        self,
        method: Callable[..., Any],
        arguments: tuple[Any, ...],
        *,
        read: Callable[[Any], Outcome],
        attempt: Attempt,
        timeout: float | None = None,
        began: float = 0.0,
        agent_loop: Callable[[], AgentLoop] | None = None,
        doing: str = "its agent ran",
        cancel_seconds: float | None = None,
    ) -> None:
        self.is_coroutine = inspect.iscoroutinefunction(method)
        self._method, self._arguments, self._read = method, arguments, read
        self._attempt, self._doing = attempt, doing
        self._timeout, self._began, self._cancel_seconds = timeout, began, cancel_seconds
        self._find_loop = agent_loop
        self._shared: AgentLoop | None = None
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[Outcome] = self._loop.create_future()
        self._stopped: asyncio.Future[tuple[Literal["cancelled", "lost"], str]]
        self._stopped = self._loop.create_future()
        self._task: asyncio.Task[Outcome] | None = None
        self._cancel_arrived = False

    def stop(self, why: Literal["cancelled", "lost"], reason: str = "") -> None:
        """End the call with this boundary of its failure; from any thread."""
        with contextlib.suppress(RuntimeError):  # the caller's loop has ended, and so has the call
            self._loop.call_soon_threadsafe(_resolve, self._stopped, (why, reason))

    async def run(self) -> Outcome:
        """Call the agent, and return what came of it."""
        seconds = self._timeout
        if seconds is not None:
            seconds = max(0.0, self._began + seconds - time.monotonic())
        why, reason = "timeout", ""
        try:
            self._start()
            ends = [self._ended, self._stopped]
            await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if self._stopped.done():
                why, reason = self._stopped.result()
        except (OSError, RuntimeError) as error:  # no more threads, or no more descriptors
            what = name_of(self._attempt)
            message = f"{what} was lost: its agent could not be started: {describe(error)}"
            return Outcome(error=RolloutCancelledError(message), boundary="lost", stuck=True)
        except asyncio.CancelledError:
            why = "cancelled"  # the caller says so, once the attempt is recorded
        finally:
            if self._shared is not None:
                self._shared.calls.discard(self)
        if self._ended.done():
            return self._ended.result()
        what = name_of(self._attempt)
        error: Exception = RolloutCancelledError(f"{what} was cancelled while {self._doing}")
        if why == "lost":
            lost = RolloutCancelledError(f"{what} was lost: {reason}")
            return Outcome(error=lost, boundary="lost")
        if why == "timeout":
            error = RolloutTimeoutError(f"{what} ran longer than timeout_seconds={self._timeout:g}")
        if self.is_coroutine:
            await self._cancel()
        return Outcome(error=error, boundary=why, stuck=not self._ended.done())

    def _start(self) -> None:
        context = contextvars.copy_context()
        if not self.is_coroutine:
            about: Any = {"target": context.run, "args": (self._run_in_thread,), "daemon": True}
            threading.Thread(name="agl-agent", **about).start()
        elif self._find_loop is None:
            self._create_task(self._loop)
        else:
            self._shared = self._find_loop()
            self._shared.calls.add(self)
            loop = self._shared.loop
            loop.call_soon_threadsafe(self._create_task, loop, context=context)

    def _create_task(self, loop: asyncio.AbstractEventLoop) -> None:
        self._task = loop.create_task(self._run_coroutine())
        self._task.add_done_callback(self._task_done)

    def _task_done(self, task: "asyncio.Task[Outcome]") -> None:
        # Cancelled before its first step, the coroutine has caught nothing.
        self._report(self._raised(asyncio.CancelledError()) if task.cancelled() else task.result())

    async def _run_coroutine(self) -> Outcome:
        try:
            return self._returned(await self._method(*self._arguments))
        except BaseException as error:  # SystemExit too: one agent must not end the runner
            return self._raised(error)

    def _run_in_thread(self) -> None:
        try:
            result = self._method(*self._arguments)
            if inspect.isawaitable(result):  # a plain function around a coroutine
                result = asyncio.run(awaited(result))
            outcome = self._returned(result)
        except BaseException as error:
            outcome = self._raised(error)
        self._report(outcome)

    def _returned(self, result: Any) -> Outcome:
        try:
            return self._read(result)
        except AgentResultError as error:
            function = getattr(getattr(self._method, "__self__", None), "function", self._method)
            if at := getattr(function, "__code__", None):
                error.add_note(f'  File "{at.co_filename}", line {at.co_firstlineno}')
            raise

    def _raised(self, error: BaseException) -> Outcome:
        # Without our own frames, the traceback begins in the agent.
        at = error.__traceback__
        while at and at.tb_next and at.tb_frame.f_globals.get("__name__") in _OUR_MODULES:
            at = at.tb_next
        try:
            return Outcome(error=error.with_traceback(at))
        except Exception as failed:  # the agent's exception has code that fails
            return Outcome(error=failed)

    def _report(self, outcome: Outcome) -> None:
        with contextlib.suppress(RuntimeError):  # given up long ago, and the runner has ended
            self._loop.call_soon_threadsafe(_resolve, self._ended, outcome)

    async def _cancel(self) -> None:
        """Cancel the coroutine; give its loop up if the loop comes neither to that nor its end."""
        if self._shared is None:
            self._cancel_task()
        else:
            with contextlib.suppress(RuntimeError):  # it is closed
                self._shared.loop.call_soon_threadsafe(self._cancel_task)
        await asyncio.wait([self._ended], timeout=self._cancel_seconds or CANCEL_SECONDS)
        if self._shared is not None and not (self._cancel_arrived or self._ended.done()):
            self._shared.give_up()

    def _cancel_task(self) -> None:
        self._cancel_arrived = True
        if self._task is not None:
            self._task.cancel()


def _resolve(future: "asyncio.Future[Any]", value: Any) -> None:
    if not future.done():
        future.set_result(value)


async def awaited(awaitable: Any) -> Any:
    """What it comes to, as a coroutine, which ``asyncio.run`` wants."""
    return await awaitable
