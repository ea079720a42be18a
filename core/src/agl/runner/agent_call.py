"""One call of an agent that ends when it must: by itself, at its deadline, or when stopped."""

import asyncio
import contextlib
import contextvars
import inspect
import math
import time
from collections.abc import Callable
from typing import Any, Literal

from agl.errors import AgentResultError, AglError, InvalidRecordError, RolloutTimeoutError
from agl.runner import agent_threads
from agl.runner.agent_threads import AgentLoop, AgentThreads, current_call, make_task
from agl.runner.result import Outcome, ReadResult

_OUR_MODULES = (__name__, "agl.agent.base", "agl.agent.function", "agl.agent.injection")
BLOCKED = (
    "blocked the event loop that they shared. A coroutine agent must not block; make it a plain "
    "function, or await"
)
Why = Literal["ended", "timeout", "cancelled", "lost", "blocked"]


class RolloutCancelledError(AglError, RuntimeError):
    """An attempt was stopped before its agent was done."""


class AgentBlockedError(AglError, RuntimeError):
    """A coroutine agent blocked the event loop that it shares with others."""


class AgentCall:
    """Calls an agent's method and watches over it.

    A coroutine runs on ``agents``' loop, or on the caller's loop without one; a plain function in
    one of ``threads``.

    Args:
        method: ``LitAgent.rollout_method(...)``.
        arguments: What it is called with.
        read: Makes of the result what is stored; see ``read_result``.
        timeout: Seconds from ``began`` until it is stopped; None for no limit.
        began: When the attempt began, by ``time.monotonic()``; the store counts from then, too.
        agents: Where coroutines run.
        threads: Where plain functions run.
        what: The attempt, for messages.
    """

    def __init__(
        self,
        method: Callable[..., Any],
        arguments: tuple[Any, ...],
        *,
        read: Callable[[Any], ReadResult],
        timeout: float | None,
        began: float,
        agents: AgentLoop | None,
        threads: AgentThreads,
        what: str,
    ) -> None:
        self.is_coroutine = inspect.iscoroutinefunction(method)
        self.agents = agents if self.is_coroutine else None
        self._threads = threads
        self._method = method
        self._arguments = arguments
        self._read = read
        self.timeout = timeout
        """Seconds that it may take in all."""
        self._what = what
        self._loop = asyncio.get_running_loop()
        self._why: asyncio.Future[Why] = self._loop.create_future()
        self._ended: asyncio.Future[Outcome] = self._loop.create_future()
        self._where = ""
        self._was_held_up = False
        self._task: asyncio.Task[None] | None = None
        self._is_given_up = False
        self._ends_at = None if timeout is None else began + timeout
        self.was_interrupted = False
        """The caller itself was cancelled; it should say so once the attempt is recorded."""

    @property
    def seconds_left(self) -> float:
        """Until its deadline."""
        return math.inf if self._ends_at is None else self._ends_at - time.monotonic()

    def stop(self, why: Literal["cancelled", "lost", "blocked"], where: str = "") -> None:
        """End the call; from any thread.

        Args:
            why: ``blocked`` is for the agent that blocked the loop, ``lost`` for the others on it.
            where: What is known of the cause, for the message.
        """
        with contextlib.suppress(RuntimeError):  # the caller's loop has ended, and so has the call
            self._loop.call_soon_threadsafe(self._decide, why, where)

    async def run(self) -> Outcome:
        """Call, and return what came of it."""
        try:
            async with asyncio.timeout(None if self.timeout is None else self.seconds_left):
                self._start()
                why = await self._why
        except TimeoutError:
            why = "timeout"
        except asyncio.CancelledError:
            self.was_interrupted = True
            why = "cancelled"
        if why == "ended":
            return self._ended.result()
        # The loop of a lost call does not answer, and nobody waits for it.
        stuck = not await self._give_up(patient=why not in ("lost", "blocked"))
        if self._was_held_up:
            why = "lost"
        if why == "timeout":
            error: AglError = RolloutTimeoutError(
                f"{self._what} ran longer than timeout_seconds={self.timeout:g}"
            )
            if self._where:
                error.add_note(f"It blocked the event loop of coroutine agents:\n{self._where}")
        elif why == "cancelled":
            error = RolloutCancelledError(f"{self._what} was cancelled while its agent ran")
        elif why == "blocked":
            error = AgentBlockedError(
                f"{self._what}: its agent blocked the event loop of coroutine agents, and was left "
                "behind. A coroutine agent must not block; make it a plain function, or await"
            )
            error.add_note(f"It was last seen here:\n{self._where}")
        else:
            error = RolloutCancelledError(
                f"{self._what} was lost: an agent {self._where or BLOCKED}"
            )
        boundary = "agent" if why == "blocked" else why
        return Outcome(error=error, boundary=boundary, stuck=stuck and why != "lost")

    def _start(self) -> None:
        context = contextvars.copy_context()
        context.run(current_call.set, self)
        try:
            if not self.is_coroutine:
                self._threads.submit(lambda: context.run(self._run_in_thread))
            elif self.agents is None:
                self._watch(self._loop.create_task(self._run_coroutine()))
            else:
                self.agents.submit(self._start_task, context=context)
        except Exception as error:  # closed in this moment; or no more threads
            where = "closed their event loop" if self.agents else f"could not begin: {error}"
            self._decide("lost", where)

    def _start_task(self) -> None:
        assert self.agents is not None
        self.agents.loop.set_task_factory(make_task)  # an agent may have set its own
        self._watch(self.agents.loop.create_task(self._run_coroutine()))

    def _watch(self, task: "asyncio.Task[None]") -> None:
        self._task = task
        task.add_done_callback(self._task_done)

    def _task_done(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled():  # before its first step, or it would have reported
            self._report(self._raised(asyncio.CancelledError()))

    def _run_in_thread(self) -> None:
        try:
            result = self._method(*self._arguments)
            if inspect.isawaitable(result):  # a plain function around a coroutine
                result = asyncio.run(awaited(result))
            outcome = self._returned(result)
        except BaseException as error:
            outcome = self._raised(error)
        self._report(outcome)

    async def _run_coroutine(self) -> None:
        try:
            outcome = self._returned(await self._method(*self._arguments))
        except BaseException as error:  # SystemExit too: one agent must not end the runner
            outcome = self._raised(error)
        self._report(outcome)

    def _returned(self, result: Any) -> Outcome:
        try:
            return Outcome(result=self._read(result))
        except InvalidRecordError as error:
            return Outcome(error=error, boundary="store")
        except AgentResultError as error:
            function = getattr(getattr(self._method, "__self__", None), "function", self._method)
            if at := getattr(function, "__code__", None):
                error.add_note(f'  File "{at.co_filename}", line {at.co_firstlineno}')
            raise

    def _raised(self, error: BaseException) -> Outcome:
        # Without our own frames, the traceback begins in the agent. Its exception may forbid that.
        with contextlib.suppress(BaseException):
            at = error.__traceback__
            while at and at.tb_next and at.tb_frame.f_globals.get("__name__") in _OUR_MODULES:
                at = at.tb_next
            error.with_traceback(at)
        return Outcome(error=error)

    def _report(self, outcome: Outcome) -> None:
        with contextlib.suppress(RuntimeError):  # given up long ago, and the runner has ended
            self._loop.call_soon_threadsafe(self._finish, outcome)

    def _finish(self, outcome: Outcome) -> None:
        if not self._ended.done():
            self._ended.set_result(outcome)
            self._decide("ended")

    def _decide(self, why: Why, where: str = "") -> None:
        if not self._why.done():
            self._where = where
            self._why.set_result(why)

    async def _give_up(self, *, patient: bool) -> bool:
        """Whether the agent has ended after all."""
        if not self.is_coroutine:
            return self._ended.done()
        if self.agents is None:
            self._cancel()
        else:
            with contextlib.suppress(RuntimeError):
                self.agents.submit(self._cancel)
        if patient and not self._ended.done():
            await asyncio.wait([self._ended], timeout=agent_threads.CANCEL_SECONDS)
        if patient and self.agents is not None and not self._is_given_up:
            self.agents.lost = BLOCKED
            culprit, self._where = self.agents.at_work()
            if culprit not in (self, None):
                self._was_held_up, self._where = True, BLOCKED
        return self._ended.done()

    def _cancel(self) -> None:
        # On the agent's loop; that it runs at all shows that the loop is not blocked.
        self._is_given_up = True
        if self._task is not None:
            self._task.cancel()


async def awaited(awaitable: Any) -> Any:
    """What it comes to, as a coroutine, which ``asyncio.run`` wants."""
    return await awaitable
