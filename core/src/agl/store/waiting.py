"""Waiting for a store, from any event loop, woken from any thread. Nothing polls."""

import asyncio
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager


class Ticket:
    """One waiting coroutine: a future, and the loop that it belongs to."""

    __slots__ = ("_future", "_loop", "woken")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()
        self.woken = False

    def wake(self) -> bool:
        """End the wait, from any thread; False when its loop is gone."""
        self.woken = True
        try:
            self._loop.call_soon_threadsafe(self._finish)
        except RuntimeError:
            return False
        return True

    def _finish(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def wait(self, seconds: float | None) -> bool:
        """Wait at most so long; whether it was woken."""
        try:
            async with asyncio.timeout(seconds):
                await self._future
        except TimeoutError:
            return False
        return True


class QueueWaiters:
    """Claimers that found the queue empty, served first come first served."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tickets: dict[Ticket, None] = {}

    @contextmanager
    def ticket(self, has_queued: Callable[[], bool]) -> Generator[Ticket]:
        """Stand in the line for the length of the block.

        Who stands in it looks at the queue once more before waiting, so nothing is missed. One that
        was woken and leaves work behind (it took other work, or was cancelled) wakes the next.
        """
        ticket = Ticket()
        with self._lock:
            self._tickets[ticket] = None
        try:
            yield ticket
        finally:
            with self._lock:
                self._tickets.pop(ticket, None)
            if ticket.woken and has_queued():
                self.wake(1)

    def wake(self, count: int) -> None:
        """Wake the first ``count`` that wait."""
        while count > 0:
            with self._lock:
                ticket = next(iter(self._tickets), None)
                if ticket is None:
                    return
                del self._tickets[ticket]
            count -= ticket.wake()

    def wake_all(self) -> None:
        """Wake everybody: the store closes."""
        self.wake(len(self._tickets))


class EndTicket(Ticket):
    """Waits until all of some rollouts have ended."""

    __slots__ = ("pending",)

    def __init__(self, rollout_ids: Iterable[str]) -> None:
        super().__init__()
        self.pending = set(rollout_ids)


class EndWaiters:
    """Who waits for which rollouts to end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.by_rollout: dict[str, set[EndTicket]] = {}

    @contextmanager
    def ticket(self, rollout_ids: Iterable[str]) -> Generator[EndTicket]:
        """Wait for these for the length of the block; look at the store once inside it."""
        ticket = EndTicket(rollout_ids)
        registered = list(ticket.pending)
        with self._lock:
            for rollout_id in registered:
                self.by_rollout.setdefault(rollout_id, set()).add(ticket)
        try:
            yield ticket
        finally:
            with self._lock:
                for rollout_id in registered:
                    tickets = self.by_rollout.get(rollout_id, set[EndTicket]())
                    tickets.discard(ticket)
                    if not tickets:
                        self.by_rollout.pop(rollout_id, None)

    def settle(self, ticket: EndTicket, rollout_ids: Iterable[str]) -> None:
        """These need no waiting: they had ended before, or are unknown."""
        with self._lock:
            ticket.pending.difference_update(rollout_ids)
            if not ticket.pending:
                ticket.wake()

    def ended(self, rollout_ids: Iterable[str]) -> None:
        """These have ended now."""
        with self._lock:
            for rollout_id in rollout_ids:
                for ticket in self.by_rollout.pop(rollout_id, ()):
                    ticket.pending.discard(rollout_id)
                    if not ticket.pending:
                        ticket.wake()

    def wake_all(self) -> None:
        """Wake everybody: the store closes."""
        with self._lock:
            for tickets in self.by_rollout.values():
                for ticket in tickets:
                    ticket.wake()


class Effects:
    """What operations did that somebody outside of them may wait for."""

    __slots__ = ("dequeued", "ended", "limits", "queued")

    def __init__(self) -> None:
        self.queued = 0
        """Rollouts that entered the queue."""
        self.dequeued = 0
        """Rollouts that left it."""
        self.ended: list[str] = []
        """Rollouts that reached a final status."""
        self.limits = False
        """Whether a record now has a deadline, so that a watchdog must look."""
