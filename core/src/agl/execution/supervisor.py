"""A small process that forks the runners, replaces those that die, and ends them all.

It is forked before its parent starts threads (server, algorithm, torch), stays single-threaded
itself, and so can fork a fresh runner at any time.
"""

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.context import ForkContext, ForkProcess
from typing import Any

from agl.execution.events import ExecutionEvent

logger = logging.getLogger(__name__)

REPLACE_ME = 75
"""Exit code of a runner that is stuck and wants a fresh process (``EX_TEMPFAIL``)."""
ORPHAN_SECONDS = 1.0
"""How long runners get to finish, and again to react to SIGTERM, when their parent was killed."""
QUICK_DEATH_SECONDS = 2.0
MAX_QUICK_DEATHS = 3
"""A runner slot whose processes die this often in a row, each so soon, is given up."""


@dataclass(frozen=True)
class RunnerDied:
    """A runner process ended without having finished; its running attempts are lost."""

    worker_id: int
    pid: int
    exit_code: int
    message: str
    """What it raised, or a description of the exit code."""
    given_up: bool
    """Whether it is not replaced, since its predecessors died at once as well."""


@dataclass(frozen=True)
class AllEnded:
    """No runner process is left, and none will be started."""


Report = RunnerDied | AllEnded
RunnerMain = Callable[[int, Callable[[str], None]], None]
"""Runs one runner: worker id, and what to call with the message before dying of an exception."""


class Supervisor:
    """The parent's handle on the supervising process.

    Args:
        context: Multiprocessing context that forks.
        runner_main: Runs in each runner process.
        n_runners: How many there are at any time.
        stop: Set to make the runners finish.
        graceful_timeout: Seconds that runners get to finish before SIGTERM.
        terminate_timeout: Seconds after SIGTERM before SIGKILL.
        after_fork: Called first in the supervising process, to close what it must not hold.
        on_report: Called in a thread of the parent for each report.
    """

    def __init__(
        self,
        context: ForkContext,
        runner_main: RunnerMain,
        *,
        n_runners: int,
        stop: ExecutionEvent,
        graceful_timeout: float,
        terminate_timeout: float,
        after_fork: Callable[[], None],
        on_report: Callable[[Report], None],
    ) -> None:
        self._stop = stop
        self._on_report = on_report
        self._deadline = graceful_timeout + terminate_timeout + 5.0
        self._ours, theirs = context.Pipe()

        def main() -> None:
            # A copy of our end kept open here would hide from the child that we have died.
            self._ours.close()
            after_fork()
            _Supervision(
                context, runner_main, n_runners, stop, graceful_timeout, terminate_timeout, theirs
            ).run()

        self._process = context.Process(target=main, name="agl-supervisor")
        self._process.start()
        theirs.close()
        self._reader = threading.Thread(target=self._read, name="agl-reports", daemon=True)

    def watch(self) -> None:
        """Begin to deliver reports; call it once the parent may have threads."""
        self._reader.start()

    def end(self) -> None:
        """Make the runners finish, wait until all processes are gone; may be called again."""
        self._stop.set()
        with contextlib.suppress(OSError):
            self._ours.send("stop")
        self._process.join(self._deadline)
        if self._process.is_alive():
            logger.error("The supervisor of the runners does not end; it is killed.")
            self._process.kill()
            self._process.join()
        if self._reader.is_alive():
            self._reader.join()
        self._ours.close()

    def _read(self) -> None:
        while True:
            try:
                report: Report = self._ours.recv()
            except (EOFError, OSError):
                return
            self._on_report(report)


class _Supervision:
    def __init__(
        self,
        context: ForkContext,
        runner_main: RunnerMain,
        n_runners: int,
        stop: ExecutionEvent,
        graceful_timeout: float,
        terminate_timeout: float,
        parent: "connection.Connection[Any, Any]",
    ) -> None:
        self.context = context
        self.runner_main = runner_main
        self.stop = stop
        self.graceful_timeout = graceful_timeout
        self.terminate_timeout = terminate_timeout
        self.parent = parent
        self.slots = {worker_id: _Slot() for worker_id in range(n_runners)}

    def run(self) -> None:
        # Ctrl+C reaches the whole process group; the parent decides what it means.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._on_sigterm)
        for worker_id in self.slots:
            self._spawn(worker_id)
        while not self.stop.is_set() and self._processes():
            ready = connection.wait([self.parent, *self._sentinels()], timeout=1.0)
            if self.parent in ready:
                self._hear()
                break
            self._reap(replace=True)
        else:
            if not self.stop.is_set():
                self._tell(AllEnded())
        self.stop.set()
        self._wind_down()

    def _hear(self) -> None:
        try:
            self.parent.recv()  # "stop"
        except (EOFError, OSError):
            # The parent was killed, and the store that it served with it: nothing to wait for.
            self.graceful_timeout = min(self.graceful_timeout, ORPHAN_SECONDS)
            self.terminate_timeout = min(self.terminate_timeout, ORPHAN_SECONDS)

    def _on_sigterm(self, signal_number: int, frame: object) -> None:
        self.stop.set()

    def _spawn(self, worker_id: int) -> None:
        slot = self.slots[worker_id]
        slot.messages, theirs = self.context.Pipe(duplex=False)

        def main() -> None:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self.parent.close()
            self.runner_main(worker_id, theirs.send)

        slot.started = time.monotonic()
        slot.process = self.context.Process(target=main, name=f"agl-runner-{worker_id}")
        slot.process.start()
        theirs.close()

    def _processes(self) -> "list[ForkProcess]":
        return [slot.process for slot in self.slots.values() if slot.process is not None]

    def _sentinels(self) -> list[int]:
        return [process.sentinel for process in self._processes()]

    def _reap(self, *, replace: bool) -> None:
        for worker_id, slot in self.slots.items():
            process = slot.process
            if process is None or process.exitcode is None:
                continue
            slot.process = None
            if process.exitcode == 0:
                continue
            stuck = process.exitcode == REPLACE_ME
            quick = not stuck and time.monotonic() - slot.started < QUICK_DEATH_SECONDS
            slot.quick_deaths = slot.quick_deaths + 1 if quick else 0
            given_up = slot.quick_deaths >= MAX_QUICK_DEATHS
            message = slot.last_message() or _describe_exit(process.exitcode)
            self._tell(RunnerDied(worker_id, process.pid or 0, process.exitcode, message, given_up))
            if replace and not given_up:
                self._spawn(worker_id)

    def _wind_down(self) -> None:
        for timeout, escalate in (
            (self.graceful_timeout, "terminate"),
            (self.terminate_timeout, "kill"),
        ):
            deadline = time.monotonic() + timeout
            while self._processes() and (left := deadline - time.monotonic()) > 0:
                connection.wait(self._sentinels(), timeout=left)
                self._reap(replace=False)
            for process in self._processes():
                getattr(process, escalate)()
        for process in self._processes():
            process.join()
        self._reap(replace=False)

    def _tell(self, report: Report) -> None:
        # Without a parent there is nobody to tell.
        with contextlib.suppress(OSError):
            self.parent.send(report)


class _Slot:
    process: "ForkProcess | None" = None
    started = 0.0
    quick_deaths = 0
    messages: "connection.Connection[Any, Any] | None" = None

    def last_message(self) -> str:
        message = ""
        while self.messages is not None and self.messages.poll():
            try:
                message = str(self.messages.recv())
            except EOFError:
                break
        return message


def _describe_exit(exit_code: int) -> str:
    if exit_code < 0:
        with contextlib.suppress(ValueError):
            return f"ended by {signal.Signals(-exit_code).name}"
    return f"exit code {exit_code}"


def leave(exit_code: int) -> None:
    """End this process at once, without the exit handlers that belong to its parent."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
