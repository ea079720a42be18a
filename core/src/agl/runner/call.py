"""One call of an agent that ends when it must: by itself, at its deadline, or when stopped."""

import asyncio
import contextlib
import contextvars
import inspect
import queue
import threading
from collections.abc import Callable
from typing import Any, Literal

from agl.errors import AglError, RolloutTimeoutError
from agl.runner.result import Outcome

CANCEL_SECONDS = 2.0
"""So long a cancelled coroutine may clean up before it counts as stuck."""

_OUR_MODULES = (__name__, "agl.agent", "agl.injection")
Why = Literal["ended", "timeout", "cancelled", "lost"]


class RolloutCancelledError(AglError, RuntimeError):
    """An attempt was stopped before its agent was done."""


class AgentLoop:
    """A thread with an event loop for coroutine agents.

    They do not share the runner's loop, so that one that blocks stops neither the deadlines nor the
    heartbeats.
    """

    def __init__(self) -> None:
        self.blocked = False
        """An agent blocked it past its deadline; it is left behind."""
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._main, name="agl-agents", daemon=True)
        self._thread.start()
        self._started.wait()

    def _main(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._started.set()
        await self._stop.wait()

    def stop(self) -> None:
        """End the thread; tasks that agents left behind are cancelled."""
        if not self.blocked:
            self.loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(CANCEL_SECONDS)


class AgentThreads:
    """Daemon threads for plain functions; one that never returns is missed by nobody.

    A thread that is done serves the next call: starting one costs more than a trivial agent.
    """

    def __init__(self) -> None:
        self._idle: list[queue.SimpleQueue[Callable[[], object] | None]] = []
        self._stopped = False

    def submit(self, work: Callable[[], object]) -> None:
        """Do ``work`` in an idle thread, or in a new one."""
        try:
            inbox = self._idle.pop()
        except IndexError:
            inbox = queue.SimpleQueue[Callable[[], object] | None]()
            threading.Thread(
                target=self._serve, args=(inbox,), name="agl-agent", daemon=True
            ).start()
        inbox.put(work)

    def _serve(self, inbox: "queue.SimpleQueue[Callable[[], object] | None]") -> None:
        while (work := inbox.get()) is not None:
            work()
            del work  # what an agent holds is not kept while the thread is idle
            if self._stopped:
                return
            self._idle.append(inbox)

    def stop(self) -> None:
        """End the threads as soon as they are idle."""
        self._stopped = True
        while self._idle:
            self._idle.pop().put(None)


class AgentCall:
    """Calls an agent's method and watches over it.

    A coroutine runs on ``agents``' loop, or on the caller's loop without one; a plain function in
    one of ``threads``.

    Args:
        method: ``LitAgent.rollout_method(...)``.
        arguments: What it is called with.
        timeout: Seconds until it is stopped; None for no limit.
        agents: Where coroutines run.
        threads: Where plain functions run.
        what: The attempt, for messages.
    """

    def __init__(
        self,
        method: Callable[..., Any],
        arguments: tuple[Any, ...],
        *,
        timeout: float | None,
        agents: AgentLoop | None,
        threads: AgentThreads,
        what: str,
    ) -> None:
        self.is_coroutine = inspect.iscoroutinefunction(method)
        self.agents = agents if self.is_coroutine else None
        self._threads = threads
        self._method = method
        self._arguments = arguments
        self._timeout = timeout
        self._what = what
        self._loop = asyncio.get_running_loop()
        self._why: asyncio.Future[Why] = self._loop.create_future()
        self._ended: asyncio.Future[Outcome] = self._loop.create_future()
        self._task: asyncio.Task[None] | None = None
        self.was_interrupted = False
        """The caller itself was cancelled; it should say so once the attempt is recorded."""

    def stop(self, why: Literal["cancelled", "lost"]) -> None:
        """End the call; from any thread."""
        with contextlib.suppress(RuntimeError):  # the caller's loop has ended, and so has the call
            self._loop.call_soon_threadsafe(self._decide, why)

    async def run(self) -> Outcome:
        """Call, and return what came of it.

        Raises:
            KeyboardInterrupt: The agent raised it.
        """
        timer = None
        if self._timeout is not None:
            timer = self._loop.call_later(self._timeout, self._decide, "timeout")
        self._start()
        try:
            why = await self._why
        except asyncio.CancelledError:
            self.was_interrupted = True
            why = "cancelled"
        finally:
            if timer is not None:
                timer.cancel()
        if why == "ended":
            outcome = self._ended.result()
            if isinstance(outcome.error, KeyboardInterrupt):
                raise outcome.error
            return outcome
        stuck = not await self._give_up()
        if why == "timeout":
            error: AglError = RolloutTimeoutError(
                f"{self._what} ran longer than timeout_seconds={self._timeout:g}"
            )
        elif why == "cancelled":
            error = RolloutCancelledError(f"{self._what} was cancelled while its agent ran")
        else:
            error = RolloutCancelledError(
                f"{self._what} was lost: another agent blocked the event loop that they shared. "
                "A coroutine agent must not block; make it a plain function, or await"
            )
        return Outcome(error=error, boundary=why, stuck=stuck)

    def _start(self) -> None:
        context = contextvars.copy_context()
        if not self.is_coroutine:
            self._threads.submit(lambda: context.run(self._run_in_thread))
        elif self.agents is None:
            self._task = self._loop.create_task(self._run_coroutine())
        else:
            self.agents.loop.call_soon_threadsafe(self._start_task, context=context)

    def _start_task(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run_coroutine())

    def _run_in_thread(self) -> None:
        try:
            result = self._method(*self._arguments)
            if inspect.isawaitable(result):  # a plain function around a coroutine
                result = asyncio.run(_awaited(result))
            outcome = Outcome(result=result)
        except BaseException as error:
            outcome = _raised(error)
        self._report(outcome)

    async def _run_coroutine(self) -> None:
        try:
            outcome = Outcome(result=await self._method(*self._arguments))
        except KeyboardInterrupt as error:
            self._report(Outcome(error=error))
            raise
        except BaseException as error:  # SystemExit too: one agent must not end the runner
            outcome = _raised(error)
        self._report(outcome)

    def _report(self, outcome: Outcome) -> None:
        with contextlib.suppress(RuntimeError):  # given up long ago, and the runner has ended
            self._loop.call_soon_threadsafe(self._finish, outcome)

    def _finish(self, outcome: Outcome) -> None:
        self._ended.set_result(outcome)
        self._decide("ended")

    def _decide(self, why: Why) -> None:
        if not self._why.done():
            self._why.set_result(why)

    async def _give_up(self) -> bool:
        """Whether the agent has ended after all."""
        if not self.is_coroutine:
            return self._ended.done()
        pong: asyncio.Future[None] = self._loop.create_future()
        if self.agents is None:
            self._cancel(pong)
        else:
            self.agents.loop.call_soon_threadsafe(self._cancel, pong)
        if not self._ended.done():
            await asyncio.wait([self._ended], timeout=CANCEL_SECONDS)
        if self.agents is not None and not pong.done():
            self.agents.blocked = True
        return self._ended.done()

    def _cancel(self, pong: "asyncio.Future[None]") -> None:
        # On the agent's loop; that it runs at all shows that the loop is not blocked.
        if self._task is not None:
            self._task.cancel()
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: pong.done() or pong.set_result(None))


def _raised(error: BaseException) -> Outcome:
    # Without our own frames, the traceback begins in the agent.
    where = error.__traceback__
    while where and where.tb_next and where.tb_frame.f_globals.get("__name__") in _OUR_MODULES:
        where = where.tb_next
    return Outcome(error=error.with_traceback(where))


async def _awaited(awaitable: Any) -> Any:
    return await awaitable
