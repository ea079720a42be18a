"""Gives agents their threads, watches over their event loop, and replaces one that hangs."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from agl.runner.agent_call import BLOCKED, AgentCall
from agl.runner.agent_threads import CANCEL_SECONDS, LOOK_SECONDS, AgentLoop, AgentThreads
from agl.utils.tracebacks import place_of

logger = logging.getLogger(__name__)

PATIENCE_WHEN_ALONE = 10
"""A coroutine that is alone on its loop may block it for so many times ``blocked_seconds``."""
HOLD_SECONDS = 0.4
"""An agent that holds the loop for longer is named, in a warning if others wait."""
HELD = (
    "%s held the event loop of coroutine agents for %.1f s, and other rollouts of this runner "
    "have to wait for that. Await there, or make the agent a plain function"
)


class AgentHost:
    """Threads and the present event loop for the agents of one runner.

    A loop that an agent closed, broke or has blocked for too long is left behind: the calls on it
    end with that reason, and the next ones get a fresh loop, as they do when its threads are gone.

    Args:
        blocked_seconds: See ``LitAgentRunner``.
        calls: Gives the calls that run at present.
    """

    def __init__(self, blocked_seconds: float, calls: Callable[[], Sequence[AgentCall]]) -> None:
        self.threads = AgentThreads()
        self._blocked_seconds = blocked_seconds
        self._calls = calls
        self._holds: dict[AgentLoop, tuple[object, float, float, str, int]] = {}
        """Loop -> call that holds it, seconds, CPU seconds at its begin, place if long, level."""
        self._told = 0
        self._loops: list[AgentLoop] = []
        """The last one is for the next coroutine."""
        self._watching: asyncio.Task[None] | None = None

    def loop(self) -> AgentLoop:
        """The loop for the next coroutine."""
        if not self._loops or self._loops[-1].lost or not self._loops[-1].is_sound:
            self._loops.append(AgentLoop())
            self._end_unused()
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        return self._loops[-1]

    def _end_unused(self) -> None:
        for loop in self._loops[:-1]:
            if loop.lost:
                self.leave(loop)
            if loop.lost or not self._calls_on(loop):
                loop.stop(wait=False)
                self._loops.remove(loop)

    def leave(self, loop: AgentLoop) -> None:
        """End the calls on a loop that is lost."""
        for call in self._calls_on(loop):
            call.stop("lost", loop.lost or BLOCKED)

    def stop(self) -> None:
        """End the threads as soon as they are idle."""
        if self._watching is not None:
            self._watching.cancel()
        for loop in self._loops:
            loop.stop()
        self.threads.stop()

    def _calls_on(self, loop: AgentLoop) -> list[AgentCall]:
        return [call for call in self._calls() if call.agents is loop]

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for loop in self._loops:
                silence = 0.0 if loop.lost else loop.silence()
                holder, where = loop.at_work() if silence > 0 else (None, "")
                self._note_hold(loop, holder, where)
                if loop.lost:  # its own thread may have found that out, too
                    self.leave(loop)
                elif silence > 0:
                    self._end_blocked(loop, silence, holder, where)
            self._end_unused()

    def _note_hold(self, loop: AgentLoop, holder: object, where: str) -> None:
        """Log the first hold of each kind when it is over.

        An import, which happens once, does not count, nor does work that waits for a processor.
        """
        known, seconds, worked, place, level = self._holds.pop(loop, (None, 0.0, 0.0, "", 0))
        if holder is not known and place and level > self._told:
            self._told = level
            logger.log(level, HELD, place, seconds)
        if holder is None:
            return
        if holder is not known:
            seconds, worked, place, level = 0.0, loop.cpu_seconds(), "", logging.DEBUG
        seconds += LOOK_SECONDS
        level = logging.WARNING if len(self._calls_on(loop)) > 1 else level
        if not place and seconds >= HOLD_SECONDS:
            cpu_seconds = loop.cpu_seconds() - worked
            is_idle, is_busy = cpu_seconds < seconds / 20, cpu_seconds >= HOLD_SECONDS
            if (is_idle or is_busy) and "importlib._bootstrap" not in where:
                place = place_of(where)
        self._holds[loop] = holder, seconds, worked, place, level

    def _end_blocked(self, loop: AgentLoop, silence: float, culprit: object, where: str) -> None:
        calls = self._calls_on(loop)
        # That their deadlines pass is not the fault of those that cannot even be cancelled.
        due = [
            call
            for call in calls
            if call.timeout is not None
            and call.seconds_left < CANCEL_SECONDS / 2  # the store has to hear of it before
            and silence >= min(CANCEL_SECONDS, call.timeout / 2)
        ]
        is_over = silence >= self._blocked_seconds
        if not due and not is_over:
            return
        if is_over and all(call is culprit for call in calls):
            is_over = silence >= PATIENCE_WHEN_ALONE * self._blocked_seconds
        if is_over:
            loop.lost = BLOCKED
        for call in calls if is_over else due:
            if call is not culprit:
                call.stop("lost", BLOCKED)
            elif is_over:
                call.stop("blocked", where)
