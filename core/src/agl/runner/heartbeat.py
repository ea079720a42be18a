"""Signs of life of a runner and of what it runs, and the news that a rollout was cancelled."""

import asyncio
import contextlib
import contextvars
import logging
import os
import platform
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from agl.errors import ConfigError, InvalidTransitionError
from agl.execution.coroutines import BackgroundCoroutine
from agl.store.base import UNSET, LightningStore
from agl.store.rules import ENDED, OPEN
from agl.types import AttemptedRollout, Rollout

logger = logging.getLogger(__name__)

MOST_AT_ONCE = 100
"""Rollouts that one request asks for: it shows the tokens of all their attempts."""
_GPU_FIELDS = ("index", "name", "utilization.gpu", "memory.used", "memory.total")


class Call(Protocol):
    """Work of an attempt: that of its agent, or of its grader."""

    is_coroutine: bool
    """Whether it can be stopped."""

    def stop(self, why: Literal["cancelled"]) -> None:
        """End it; from any thread."""


@dataclass(frozen=True)
class Running:
    """An attempt between its claim and its recorded end."""

    rollout: AttemptedRollout
    call: Call | None
    """What can be stopped of it; None while its hooks, resources or gateways have it."""


class Heartbeat:
    """Tells the store at intervals that a runner and its attempts are alive.

    Attempts whose rollout was cancelled, or that ended in the store, are stopped when they are
    coroutines.

    Args:
        store: The store.
        worker_id: The runner's id there.
        running: Gives what runs at present; called from any thread.
        interval: Seconds between heartbeats; less when an ``unresponsive_seconds`` needs it.
        include_gpu: Whether to add what ``nvidia-smi`` tells.

    Raises:
        ConfigError: ``include_gpu`` without ``nvidia-smi``.
    """

    def __init__(
        self,
        store: LightningStore,
        worker_id: str,
        running: Callable[[], Sequence[Running]],
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
        loop = asyncio.get_running_loop()
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
            last_beat = loop.time()
            wake_at = last_beat + max(0.05, min(self._interval, self._shortest()))
            while (left := wake_at - loop.time()) > 0:
                # Short steps: a rollout that starts with a short ``unresponsive_seconds`` is
                # noticed within one of them.
                await asyncio.sleep(min(left, 0.25))
                wake_at = min(wake_at, last_beat + self._shortest())

    def _shortest(self) -> float:
        limits = [
            limit
            for running in self._running()
            if (limit := running.rollout.config.unresponsive_seconds) is not None
        ]
        return min(limits, default=float("inf")) / 3

    async def beat(self) -> None:
        """One heartbeat."""
        now = time.time()
        # With a short ``unresponsive_seconds`` there are many beats; the numbers change slowly.
        if now - self._last_stats >= min(self._interval, 1.0):
            self._last_stats = now
            stats = await asyncio.to_thread(self.stats)  # nvidia-smi takes its time
            await self._store.update_worker(self._worker_id, heartbeat_stats=stats)
        running = {item.rollout.rollout_id: item for item in self._running()}
        if not running:
            return
        ids = list(running)
        found: list[Rollout] = []
        for first in range(0, len(ids), MOST_AT_ONCE):
            some = ids[first : first + MOST_AT_ONCE]
            found += await self._store.query_rollouts(rollout_id_in=some)
        for rollout in found:
            item = running[rollout.rollout_id]
            attempt = item.rollout.attempt
            if not isinstance(rollout, AttemptedRollout):
                continue
            is_ours = rollout.attempt.attempt_id == attempt.attempt_id
            ended = is_ours and rollout.attempt.status not in (*OPEN, "unresponsive")
            if rollout.status in ENDED or not is_ours or ended:
                if item.call is not None and item.call.is_coroutine:
                    item.call.stop("cancelled")
                continue
            # An agent that makes no span for a while is running all the same.
            preparing = item.call is not None and rollout.attempt.status == "preparing"
            with contextlib.suppress(InvalidTransitionError):  # it has ended in the meantime
                await self._store.update_attempt(
                    attempt.rollout_id,
                    attempt.attempt_id,
                    status="running" if preparing else UNSET,
                    last_heartbeat_time=time.time(),
                )

    def stats(self) -> dict[str, Any]:
        """What a heartbeat says about machine and process."""
        stats: dict[str, Any] = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "os": platform.platform(),
            "cpu_count": os.cpu_count(),
            "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
            "num_running": len(self._running()),
        }
        if self._include_gpu:
            stats["gpus"] = gpu_stats()
        return stats


def gpu_stats() -> list[dict[str, str]]:
    """One entry per GPU: index, name, utilisation in percent, memory in MiB."""
    output = subprocess.run(
        ["nvidia-smi", f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
    ).stdout
    return [
        dict(zip(_GPU_FIELDS, (part.strip() for part in line.split(",")), strict=True))
        for line in output.splitlines()
    ]
