"""Signs of life of a runner and of what it runs, and the news that a rollout was cancelled."""

import asyncio
import contextlib
import contextvars
import logging
import math
import os
import platform
import shutil
import socket
import subprocess
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from agl.errors import ConfigError, InvalidTransitionError, UnknownRecordError
from agl.execution.coroutines import BackgroundCoroutine
from agl.runner.agent_call import AgentCall
from agl.store.base import UNSET, LightningStore
from agl.store.rules import ENDED, OPEN
from agl.types import AttemptedRollout, Rollout

logger = logging.getLogger(__name__)

MOST_AT_ONCE = 100
"""Rollouts that one request asks for: it shows the tokens of all their attempts."""
_GPU_FIELDS = ("index", "name", "utilization.gpu", "memory.used", "memory.total")


@dataclass
class Running:
    """An attempt between its claim and its recorded end."""

    rollout: AttemptedRollout
    call: AgentCall | None = None
    """Of its agent or its grader; None while its hooks, resources or gateways have it."""


class Heartbeat:
    """Tells the store at intervals that a runner and its attempts are alive.

    Attempts whose rollout was cancelled or deleted, or that ended in the store, are stopped when
    they are coroutines.

    Args:
        running: What runs at present, by attempt; read in another thread.
        interval: Seconds between heartbeats; less when an ``unresponsive_seconds`` needs it.
        include_gpu: Whether to add what ``nvidia-smi`` tells; a ``ConfigError`` without that.
    """

    def __init__(
        self,
        store: LightningStore,
        worker_id: str,
        running: dict[str, Running],
        *,
        interval: float,
        include_gpu: bool,
    ) -> None:
        if include_gpu and shutil.which("nvidia-smi") is None:
            raise ConfigError(
                "heartbeat_include_gpu=True needs 'nvidia-smi' on the PATH, and there is none"
            )
        self._store = store
        self._worker_id = worker_id
        self._running = running
        self._interval = interval
        self._include_gpu = include_gpu
        self._is_quiet = False
        """A failure is known already, or the runner ends."""
        self._last_stats = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begun = asyncio.Event()

    def attempt_begun(self) -> None:
        """Look at its ``unresponsive_seconds``; from another thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._begun.set)

    @contextlib.contextmanager
    def beating(self) -> Generator[None]:
        """Beat in a thread of its own, for as long as the block runs."""
        beats = BackgroundCoroutine(self._beat_at_intervals, thread_name="agl-heartbeat")
        # Without the caller's context: these calls belong to no trace.
        contextvars.Context().run(beats.start)
        try:
            yield
        finally:
            self._is_quiet = True
            beats.cancel()

    async def _beat_at_intervals(self) -> None:
        self._loop = asyncio.get_running_loop()
        while True:
            try:
                await self.beat()
                self._is_quiet = False
            except Exception as error:  # a heartbeat that fails must not end the work
                logger.log(
                    logging.DEBUG if self._is_quiet else logging.WARNING,
                    "heartbeat of %s failed: %s: %s",
                    self._worker_id,
                    type(error).__name__,
                    error,
                )
                self._is_quiet = True
            began = time.monotonic()
            while (left := began + self._pause() - time.monotonic()) > 0:
                self._begun.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._begun.wait(), left)

    def _pause(self) -> float:
        limits = [one.rollout.config.unresponsive_seconds for one in self._now()]
        shortest = min((limit for limit in limits if limit is not None), default=math.inf)
        return max(0.05, min(self._interval, shortest / 3))

    def _now(self) -> list[Running]:
        return list(self._running.values())

    async def beat(self) -> None:
        """One heartbeat."""
        now = time.time()
        # With a short ``unresponsive_seconds`` there are many beats; the numbers change slowly.
        if now - self._last_stats >= min(self._interval, 1.0):
            self._last_stats = now
            stats = await asyncio.to_thread(self._stats)  # nvidia-smi takes its time
            await self._store.update_worker(self._worker_id, heartbeat_stats=stats)
        running = {one.rollout.rollout_id: one for one in self._now()}
        ids = list(running)
        for first in range(0, len(ids), MOST_AT_ONCE):
            some = ids[first : first + MOST_AT_ONCE]
            found = await self._store.query_rollouts(rollout_id_in=some)
            stored = {rollout.rollout_id: rollout for rollout in found}
            for rollout_id in some:
                await self._beat_of(running[rollout_id], stored.get(rollout_id))

    async def _beat_of(self, running: Running, stored: Rollout | None) -> None:
        """Stop an attempt that has ended or is gone; of any other, note that it is alive."""
        call, attempt = running.call, running.rollout.attempt
        latest = stored.attempt if isinstance(stored, AttemptedRollout) else None
        if stored is not None and latest is None:
            return
        is_ours = latest is not None and latest.attempt_id == attempt.attempt_id
        status = latest.status if latest is not None and is_ours else None
        if stored is None or stored.status in ENDED or status not in (*OPEN, "unresponsive"):
            if call is not None and call.is_coroutine:
                call.stop("cancelled")
            return
        # An agent that makes no span for a while is running all the same.
        preparing = call is not None and status == "preparing"
        with contextlib.suppress(InvalidTransitionError, UnknownRecordError):  # it has ended
            await self._store.update_attempt(
                attempt.rollout_id,
                attempt.attempt_id,
                status="running" if preparing else UNSET,
                last_heartbeat_time=time.time(),
            )

    def _stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "os": platform.platform(),
            "cpu_count": os.cpu_count(),
            "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
            "num_running": len(self._running),
        }
        if self._include_gpu:
            stats["gpus"] = gpu_stats()
        return stats


def gpu_stats() -> list[dict[str, str]]:
    """One entry per GPU: index, name, utilisation in percent, memory in MiB."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_GPU_FIELDS)}"]
    output = subprocess.run(
        [*command, "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
    ).stdout
    rows = (map(str.strip, line.split(",")) for line in output.splitlines())
    return [dict(zip(_GPU_FIELDS, row, strict=True)) for row in rows]
