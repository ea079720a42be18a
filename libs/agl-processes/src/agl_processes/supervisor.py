"""A small process that forks the runners, replaces those that die, and ends them all.

It is forked before its parent starts threads (server, algorithm, torch), stays single-threaded
itself, and so can fork a fresh runner at any time. What agents start and leave behind becomes its
child, and ends with the run at the latest.
"""

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

import psutil

from agl.execution.base import ExecutionEvent
from agl_processes import tree
from agl_processes.runner_process import FINISHED, STORE_AWAY, WORKING, Tell, messages_of, teller

if TYPE_CHECKING:  # Windows has none, and is told so by the strategy
    from multiprocessing.context import ForkContext, ForkProcess

logger = logging.getLogger("agl.server")

ORPHAN_SECONDS = 1.0
"""How long runners get to finish, and again to react to SIGTERM, when their parent was killed."""
LOOK_SECONDS = 1.0
"""How often the supervisor looks after its runners."""
MAX_VAIN_STARTS = 3
"""A runner slot whose processes die this often in a row, none of them at work, is given up. The
deaths of those at work cost attempts, of which a rollout has only so many."""


@dataclass(frozen=True)
class RunnerStarted:
    """A runner process was started."""

    worker_id: int
    pid: int
    name: str | None = None
    """Of one on another machine: its id in the store."""


@dataclass(frozen=True)
class RunnerDied:
    """A runner process ended without having finished; its running attempts are lost."""

    worker_id: int
    pid: int  # 0 if none had begun
    message: str
    """What it raised, or a description of the exit code."""
    given_up: bool
    """Whether its predecessors did no work either, or the supervisor died."""
    store_away: bool = False
    """Whether it died because the store cannot be reached; it has waited for it."""
    is_orphan: bool = False
    """Whether it was ended because the supervisor died, which no attempt of its is to blame for."""
    name: str | None = None
    """Of one on another machine: its id in the store."""
    is_replaced: bool = False
    """Whether another runner is started in its place; at the end of a run none is."""


@dataclass(frozen=True)
class AllEnded:
    """No runner process is left, and none will be started."""

    because: str | None = None
    """What ended them, if that was neither the end of the run nor each in its order."""


Report = RunnerStarted | RunnerDied | AllEnded
RunnerMain = Callable[[int, Tell], None]
"""Runs one runner: worker id, and what to call with ``WORKING`` once it is, and last with
``FINISHED`` or with what it died of."""


@dataclass
class Runners:
    """Which runners a supervisor keeps, and how it does."""

    context: "ForkContext"
    main: RunnerMain
    number: int
    stop: ExecutionEvent
    """Set to make them finish."""
    graceful_timeout: float
    terminate_timeout: float
    because: str | None = None
    due: list[tuple[float, int]] | None = None
    """When, from the moment of ``stop`` on, runners that are left get which signal."""

    def supervise(self, parent: "connection.Connection[Any, Any]", parent_pid: int) -> None:
        """Keep them until the end; the life of a supervising process."""
        self.parent, self.parent_pid, stop = parent, parent_pid, self.stop
        # Ctrl+C reaches the whole process group; the parent decides what it means.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.signal(signal.SIGTSTP, self._on_sigtstp)
        tree.adopt_orphans()
        self._wake_on_signals()
        self.slots = {number: _Slot() for number in range(self.number)}
        for worker_id in self.slots:
            self._spawn(worker_id)
        while self._processes():
            news = self._wait(LOOK_SECONDS)
            is_orphan = os.getppid() != self.parent_pid
            if not stop.is_set() and (self.parent in news or is_orphan):
                self._hear()
                stop.set()
            self._reap(replace=not stop.is_set())
            self._end_the_slow()
        self._tell(AllEnded(self.because))
        tree.kill_descendants(psutil.Process())

    def _hear(self) -> None:
        if os.getppid() == self.parent_pid:
            with contextlib.suppress(EOFError, OSError):
                self.parent.recv()  # "stop"
                return
        # The parent was killed, and the store that it served with it: nothing to wait for.
        self.graceful_timeout = min(self.graceful_timeout, ORPHAN_SECONDS)
        self.terminate_timeout = min(self.terminate_timeout, ORPHAN_SECONDS)

    def _end_the_slow(self) -> None:
        """Once all shall stop: SIGTERM, and later SIGKILL, to the runners that have not."""
        if not self.stop.is_set():
            return
        now = time.monotonic()
        if self.due is None:
            terminate_at = now + self.graceful_timeout
            kill_at = terminate_at + self.terminate_timeout
            self.due = [(terminate_at, signal.SIGTERM), (kill_at, signal.SIGKILL)]
        while self.due and now >= self.due[0][0]:
            self._signal_runners(self.due.pop(0)[1], os.kill)

    def _wake_on_signals(self) -> None:
        # Not the sentinels of the processes: their agents' children may hold those open, or an
        # agent may close them.
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self.woken, self.wake = os.pipe()
        for end in (self.woken, self.wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self.wake, warn_on_full_buffer=False)

    def _wait(self, timeout: float) -> list[Any]:
        """Until a child or the parent does something, or something is due."""
        if self.due:
            timeout = max(0.0, min(timeout, self.due[0][0] - time.monotonic()))
        parents = [] if self.stop.is_set() else [self.parent]
        ready = connection.wait([*parents, self.woken], timeout=timeout)
        with contextlib.suppress(BlockingIOError):
            os.read(self.woken, 4096)
        return ready

    def _on_sigterm(self, signal_number: int, frame: object) -> None:
        if not self.stop.is_set():
            self.because = "the supervisor of the runners was ended by SIGTERM"
        self.stop.set()

    def _on_sigtstp(self, signal_number: int, frame: object) -> None:
        # Ctrl+Z reaches the terminal's process group, and the runners have groups of their own.
        self._signal_runners(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._signal_runners(signal.SIGCONT)

    def _signal_runners(self, number: int, send: Callable[[int, int], None] = os.killpg) -> None:
        for process in self._processes():
            with contextlib.suppress(ProcessLookupError):
                send(process.pid or 0, number)

    def _spawn(self, worker_id: int) -> None:
        messages, theirs = self.context.Pipe(duplex=False)
        supervisor = os.getpid()

        def main() -> None:
            for number in (signal.SIGTERM, signal.SIGTSTP, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            # Linux hangs up a stopped process whose parent dies, and lets it go on: it has to end
            # its descendants. A handler, not SIG_IGN, which programs that it starts would inherit.
            signal.signal(signal.SIGHUP, lambda number, frame: None)
            signal.set_wakeup_fd(-1)  # Python 3.12's asyncio has done so already
            os.close(self.wake)
            os.close(self.woken)
            self.parent.close()
            tree.start_group(supervisor)
            self.main(worker_id, teller(theirs))

        process = self.context.Process(target=main, name=f"agl-runner-{worker_id}")
        process.start()
        theirs.close()
        self.slots[worker_id].begin(process, messages)
        self._tell(RunnerStarted(worker_id, process.pid or 0))

    def _processes(self) -> "list[ForkProcess]":
        return [slot.process for slot in self.slots.values() if slot.process is not None]

    def _reap(self, *, replace: bool) -> None:
        for worker_id, slot in self.slots.items():
            process = slot.ended()
            if process is None:
                continue
            said = messages_of(slot.messages)
            last = next((message for message in reversed(said) if message != WORKING), "")
            if process.exitcode == 0 and last == FINISHED:
                continue
            slot.vain_starts = 0 if WORKING in said else slot.vain_starts + 1
            given_up = slot.vain_starts >= MAX_VAIN_STARTS
            exit_code = process.exitcode or 0
            message = last or tree.describe_exit(exit_code)
            if given_up:
                message = f"it died before its first rollout, again and again: {message}"
            away = exit_code == STORE_AWAY and bool(last)  # not an agent that chose this number
            about = worker_id, process.pid or 0, message, given_up, away
            is_replaced = replace and not given_up
            self._tell(RunnerDied(*about, is_replaced=is_replaced))
            if is_replaced:
                self._spawn(worker_id)
        tree.reap_orphans({process.pid or 0 for process in self._processes()})

    def _tell(self, report: Report) -> None:
        # Without a parent there is nobody to tell.
        with contextlib.suppress(OSError):
            self.parent.send(report)


class Supervisor:
    """The parent's handle on the supervising process.

    Args:
        main: Runs in the supervising process, with the pipe and the process id of its parent. It
            sends reports, ``AllEnded`` last; the pipe says ``"stop"``, or what ``send`` gets.
        stop: Set at the end.
        seconds: How long runners get to end.
        after_fork: Called first in the supervising process, to close what it must not hold.
        on_report: Called in a thread of the parent for each report.
        lost: What has happened when the supervising process has died.
    """

    def __init__(
        self,
        main: "Callable[[connection.Connection[Any, Any], int], None]",
        stop: ExecutionEvent,
        seconds: float,
        *,
        after_fork: Callable[[], None] = lambda: None,
        on_report: Callable[[Report], None],
        lost: str = "the supervisor of the runners died",
    ) -> None:
        self._stop = stop
        self._on_report, self._lost = on_report, lost
        self._deadline = seconds + 5.0
        fork = multiprocessing.get_context("fork")
        self._ours, theirs = fork.Pipe()
        self._alive: dict[int, tuple[RunnerStarted, psutil.Process | None]] = {}
        parent = os.getpid()

        def run() -> None:
            # A copy of our end kept open here would hide from the child that we have died.
            self._ours.close()
            after_fork()
            main(theirs, parent)

        self._process = fork.Process(target=run, name="agl-supervisor")
        self._process.start()
        theirs.close()
        self._reader = threading.Thread(target=self._read, name="agl-reports", daemon=True)

    def watch(self) -> None:
        """Begin to deliver reports; call it once the parent may have threads."""
        self._reader.start()

    def send(self, message: object) -> None:
        """Tell the supervising process something, if it lives."""
        with contextlib.suppress(OSError):
            self._ours.send(message)

    def end(self) -> None:
        """Make the runners finish, wait until all processes are gone; may be called again."""
        self._stop.set()
        if self._reader.ident is None:
            self.watch()
        self.send("stop")
        self._reader.join(self._deadline)
        if self._reader.is_alive():
            logger.error("The supervisor of the runners does not end; it is killed.")
            self._process.kill()
            self._reader.join()
        self._ours.close()

    def _read(self) -> None:
        all_ended = False
        while not all_ended:
            try:
                report: Report = self._ours.recv()
            except (EOFError, OSError):
                break
            all_ended = isinstance(report, AllEnded)
            if isinstance(report, RunnerStarted):
                process = None
                if report.name is None:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process = psutil.Process(report.pid)
                self._alive[report.worker_id] = report, process
            elif isinstance(report, RunnerDied):
                self._alive.pop(report.worker_id, None)
            self._on_report(report)
        self._process.join()
        if not all_ended:
            how = tree.describe_exit(self._process.exitcode or 0)
            message = f"{self._lost}: {how}"
            for worker_id, (began, runner) in self._alive.items():
                if runner is not None:
                    tree.kill_descendants(runner, itself=True)
                about = worker_id, began.pid, message, True
                self._on_report(RunnerDied(*about, is_orphan=True, name=began.name))
            self._on_report(AllEnded(message))


class _Slot:
    """A runner's place, and the process that has it."""

    process: "ForkProcess | None" = None
    vain_starts = 0

    def begin(self, process: "ForkProcess", messages: "connection.Connection[Any, Any]") -> None:
        self.process, self.messages = process, messages
        self._handle = psutil.Process(process.pid)

    def ended(self) -> "ForkProcess | None":
        """The process, if it has ended; the place is then free."""
        process = self.process
        if process is None:
            return None
        if tree.status_of(self._handle) == psutil.STATUS_ZOMBIE:
            tree.kill_group(self._handle.pid)  # what its agents left behind
        if process.exitcode is None:
            return None
        self.process = None
        return process
