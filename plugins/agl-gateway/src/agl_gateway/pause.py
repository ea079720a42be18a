"""Holds model calls back while weights change, and knows how many are in flight."""

import asyncio
from collections import Counter

from agl_gateway.errors import RefusedError


class PauseControl:
    """Every call passes it on its way in and on its way out. Lives in one event loop.

    Each model has its own state, so that a frozen model answers while the one that is trained
    pauses.
    """

    def __init__(self, max_pause_seconds: float) -> None:
        self._max_pause_seconds = max_pause_seconds
        self._in_flight = Counter[str]()
        self._paused: dict[str | None, bool] = {}
        """Model (None: all of them) -> whether its calls are refused instead of kept waiting."""
        self._changed = asyncio.Event()

    def in_flight(self, model: str | None = None) -> int:
        """How many calls are under way, of one model or of all."""
        return self._in_flight.total() if model is None else self._in_flight[model]

    async def enter(self, model: str) -> None:
        """A call begins; it waits here while its model is paused.

        Raises:
            RefusedError: The pause refuses calls, or has lasted too long.
        """
        if self._paused:
            await self._wait_for_resume(model)
        self._in_flight[model] += 1

    def leave(self, model: str) -> None:
        self._in_flight[model] -= 1
        if not self._in_flight[model]:
            del self._in_flight[model]
            self._notify()

    async def pause(self, model: str | None, refuse: bool) -> None:
        self._paused[model] = refuse
        self._notify()

    async def resume(self, model: str | None) -> None:
        """Let calls in again; None ends every pause."""
        if model is None:
            self._paused.clear()
        self._paused.pop(model, None)
        self._notify()

    async def drain(self, model: str | None) -> None:
        while self.in_flight(model):
            await self._changed.wait()

    def _notify(self) -> None:
        # Wake those who wait now; who comes later waits for the next change.
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait_for_resume(self, model: str) -> None:
        try:
            async with asyncio.timeout(self._max_pause_seconds):
                while {None, model} & self._paused.keys():
                    if self._paused.get(model) or self._paused.get(None):
                        raise self._refused(model, "its weights are being replaced")
                    await self._changed.wait()
        except TimeoutError:
            raise self._refused(
                model, f"it has been paused for more than {self._max_pause_seconds:g} seconds"
            ) from None

    def _refused(self, model: str, why: str) -> RefusedError:
        said = f"model {model!r} takes no calls now: {why}; try again"
        return RefusedError(503, said, "model_paused")
