"""Processes that serve the same weights: started side by side, and anew when one of them ends."""

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager

from agl.errors import AglError
from agl_models.processes.model_process import HOST, POLL_SECONDS, is_healthy, reserved_port
from agl_models.versions import Served

logger = logging.getLogger("agl.models")

MAX_RESTARTS = 3
"""How often a replica is started anew between two updates of its weights."""
FIRST_WAIT_SECONDS = 1.0
"""How long a replica waits before its first restart; twice as long before the next."""


class Replica:
    """One of the processes, always at the same address, which ``start`` starts at a port.

    It is started anew ``max_restarts`` times until ``restarts`` is set back, and not while
    ``weights_change`` is held, as then the weights change that it reads.
    """

    def __init__(
        self,
        start: Callable[[int], AbstractAsyncContextManager[Served]],
        max_restarts: int,
        weights_change: threading.Lock,
    ) -> None:
        self._start, self._max_restarts, self._weights_change = start, max_restarts, weights_change
        self.restarts = 0
        self.served: Served | None = None
        """None while it does not answer."""
        self._why_down = ""
        self.is_up = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Keep it running until this is cancelled, or it has ended too often."""
        with reserved_port(0) as port:
            self.url = f"http://{HOST}:{port}"
            await self._run_once(port, threading.Lock())
            while self.restarts < self._max_restarts:
                wait = FIRST_WAIT_SECONDS * 2**self.restarts
                self.restarts += 1
                logger.warning("%s\nIt is started anew in %g s", self._why_down, wait)
                await asyncio.sleep(wait)
                try:
                    await self._run_once(port, self._weights_change)
                except (AglError, OSError) as error:
                    self._why_down = str(error)
            logger.error("%s\nIt is not started again", self._why_down)

    async def _run_once(self, port: int, lock: threading.Lock) -> None:
        while not lock.acquire(blocking=False):  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
        async with contextlib.AsyncExitStack() as stack:
            try:
                self.served = served = await stack.enter_async_context(self._start(port))
            finally:
                lock.release()
            if not self.is_up.done():
                self.is_up.set_result(None)
            assert served.process is not None
            await served.process.wait()
            self._why_down, self.served = await served.why_silent() or "", None

    async def why_down(self) -> str | None:
        """Why it does not answer at the moment."""
        served = self.served
        return self._why_down if served is None else await served.why_silent()

    def end(self) -> None:
        """Return when it answers no more; called in another thread than that of ``run``."""
        served, self.served = self.served, None
        if served is not None and served.process is not None:
            with contextlib.suppress(ProcessLookupError):
                if served.process.returncode is None:
                    os.kill(served.process.pid, signal.SIGTERM)
            while is_healthy(self.url):
                time.sleep(POLL_SECONDS)


@contextlib.asynccontextmanager
async def running_replicas(replicas: Sequence[Replica]) -> AsyncGenerator[None]:
    """A block that begins when all replicas answer; raises why one does not."""
    tasks = [asyncio.create_task(one.run()) for one in replicas]
    try:
        for one, task in zip(replicas, tasks, strict=True):
            await asyncio.wait([one.is_up, task], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
