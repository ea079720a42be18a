"""The far side of ``ForkServer``: the clean process, and the children that it forks for calls.

Who forks whom, and when: before the first agent runs, the runner forks the *clean process* of its
graders, or a sandbox starts an interpreter that becomes one. It imports what the calls need, and
from then on only forks. For each call it forks a *keeper*, and this forks the *worker*, in which
the grader or the agent runs; both are as clean as the first process still is::

    runner - clean process - keeper - worker - what the work starts
    runner - clean process - worker - what the work starts             (in an enclosure)

The keeper is there as a worker may start programs that outlive it: the keeper adopts them, kills
them when the worker has ended, and ends last, so that nothing of a call stays. An *enclosure* makes
fresh namespaces, in which the clean process forks the worker as the first; with it the kernel ends
all others there, so that no keeper is needed.

What runner and worker say to each other is JSON in frames: a worker may be held by an agent's code,
and so nothing of it is ever unpickled.
"""

import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import stat
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, NoReturn

import psutil

from agl.errors import AglError
from agl.utils.json_values import parse_json
from agl.utils.text import capped, clean, describe, full_name_of
from agl_processes.tree import (
    KILL_SECONDS,
    PARENT_LOOK_SECONDS,
    adopt_orphans,
    kill_descendants,
    kill_group,
    status_of,
)
from agl_sandbox.linux import die_with_parent

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""Most bytes of one message in either direction."""
HEADER_BYTES = 4
"""Bytes of the header before each frame: its length, big-endian."""
MAX_SOCKETS = 32
"""Most sockets that an enclosure hands out."""

Ask = Callable[[Any], Any]
"""Sends a message to the caller, and returns what its ``on_message`` returns."""
OnMessage = Callable[[Any], Awaitable[Any]]
"""The caller's answer to such a message."""
Work = Callable[[Any, Ask], Any]
"""Runs in a child of its own for each call: payload and ``ask`` -> result; all JSON."""
Enclose = Callable[[Any], contextlib.AbstractContextManager[Sequence[socket.socket]]]
"""Entered for each call while its process is forked: what the call says of its enclosure -> sockets
for the caller. An error ends the clean process. No process of the call may outlive its first."""


class FrameError(AglError, ValueError):
    """What came is no frame, or none that is taken."""


def encode(value: Any) -> bytes:
    """A frame that holds a value.

    Raises:
        FrameError: JSON cannot hold it, or it is too long.
    """
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise FrameError(f"JSON cannot hold it: {describe(error)}") from None
    if len(text) > MAX_FRAME_BYTES:
        raise FrameError(f"a message of {len(text)} bytes; at most {MAX_FRAME_BYTES} are sent")
    return len(text).to_bytes(HEADER_BYTES) + text.encode()


def length_of(header: bytes) -> int:
    """How many bytes follow a header.

    Raises:
        FrameError: Too many.
    """
    length = int.from_bytes(header)
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"a message of {length} bytes; at most {MAX_FRAME_BYTES} are read")
    return length


def decode(frame: bytes) -> dict[str, Any]:
    """What a frame holds, without its header.

    Raises:
        FrameError: It is no JSON object.
    """
    try:
        value = parse_json(frame.decode())
    except ValueError as error:
        raise FrameError(f"a message that is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise FrameError(f"expected a JSON object, got a {type(value).__name__}")
    return value


def receive(read: Callable[[int], bytes]) -> dict[str, Any]:
    """Wait for a frame of what ``read`` gives, which is at most so many bytes, and none at the end.

    Raises:
        EOFError: The other side says no more.
        FrameError: See ``decode``.
    """
    return decode(_exactly(read, length_of(_exactly(read, HEADER_BYTES))))


def _exactly(read: Callable[[int], bytes], count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        chunk = read(min(count - len(data), 1 << 20))
        if not chunk:
            raise EOFError("the other side says no more")
        data += chunk
    return bytes(data)


# --- the clean process ------------------------------------------------------------------------


def serve(
    control: socket.socket,
    work: Work,
    enclose: Enclose | None = None,
    *,
    is_parent_alive: Callable[[], bool] = lambda: True,
) -> NoReturn:
    """Fork a child for each call that ``control`` asks for, until its other end is closed.

    To be called in a process with one thread, in which no agent's code has run.

    Args:
        control: What ``ForkServerClient`` writes to.
        is_parent_alive: Asked now and then; when it is not, this process ends.
    """
    for number in (signal.SIGINT, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)  # the runner decides what they mean
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    adopt_orphans()
    # Collecting garbage would write into every page, and so copy it, in each child anew.
    gc.freeze()
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    selector = selectors.DefaultSelector()
    for each in (control, woken):
        selector.register(each, selectors.EVENT_READ)
    lifelines: dict[int, socket.socket] = {}  # child -> what its caller shuts to end it

    def live(sock: socket.socket, lifeline: socket.socket, output: int) -> NoReturn:
        """Be the child of a call; what is not for it is closed."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            selector.close()
            for each in (control, woken, wake, lifeline, *lifelines.values()):
                each.close()
            for number in (1, 2):
                os.dup2(output, number)
            os.close(output)
            hide_descriptors((0, 1, 2, sock.fileno()), of_files=False)
            die_with_parent()
            os.setsid()
            if enclose is None:
                _fork_from_keeper(sock)
            answer_call(work, lambda: receive(sock.recv), sock.sendall)
        finally:
            os._exit(1)

    while is_parent_alive():
        ready = {key.fileobj for key, _ in selector.select(PARENT_LOOK_SECONDS)}
        with contextlib.suppress(BlockingIOError):
            woken.recv(4096)
        for pid, lifeline in lifelines.items():
            if lifeline in ready:
                selector.unregister(lifeline)
                _end(pid)
        if control in ready:
            try:
                details, (sock, lifeline), output = _start_of(control)
            except (EOFError, OSError, ValueError):
                break
            with sock, enclose(details) if enclose else contextlib.nullcontext() as sockets:
                if enclose:
                    _hand_out(sock, sockets or ())
                if (pid := os.fork()) == 0:
                    live(sock, lifeline, output)
            os.close(output)
            lifelines[pid] = lifeline
            selector.register(lifeline, selectors.EVENT_READ)
        _reap(lifelines, selector, has_keepers=enclose is None)
    for pid in lifelines:
        _end(pid)
    kill_descendants(psutil.Process())
    _reap(lifelines, selector, has_keepers=False)  # which tells the callers
    os._exit(0)


def _start_of(control: socket.socket) -> tuple[Any, list[socket.socket], int]:
    header, descriptors, _, _ = socket.recv_fds(control, HEADER_BYTES, 3)
    if not header:
        raise EOFError
    header += _exactly(control.recv, HEADER_BYTES - len(header))
    details = decode(_exactly(control.recv, length_of(header)))["details"]
    *ends, output = descriptors
    return details, [socket.socket(fileno=number) for number in ends], output


def hide_descriptors(but: Collection[int], *, of_files: bool) -> None:
    """Put nothing in the place of what is open.

    Closed, their numbers would go to other files, into which those who remember them would write.

    Args:
        but: What stays.
        of_files: Whether also files are hidden; else sockets and pipes, through which calls that
            share them would reach each other.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/dev/fd"):
        number = int(name)
        with contextlib.suppress(OSError):  # that of the list itself
            mode = os.fstat(number).st_mode
            is_hidden = of_files or stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)
            if is_hidden and number not in (nothing, *but):
                os.dup2(nothing, number, inheritable=number == 0)
    os.close(nothing)


def _hand_out(sock: socket.socket, sockets: Sequence[socket.socket]) -> None:
    """Give the caller the sockets of the enclosure; here they are closed."""
    with contextlib.suppress(OSError):  # it may have given up
        socket.send_fds(sock, [b"."], [each.fileno() for each in sockets])
    for each in sockets:
        each.close()


def _end(pid: int) -> None:
    """Kill a child and its group, which it may not lead yet."""
    os.kill(pid, signal.SIGKILL)
    kill_group(pid)


def _reap(
    lifelines: dict[int, socket.socket], selector: selectors.BaseSelector, *, has_keepers: bool
) -> None:
    gone: list[tuple[socket.socket, int]] = []
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            pid = ended.si_pid
            lifeline = lifelines.pop(pid, None)
            if lifeline is not None:
                kill_group(pid)  # until it is waited for, no other process gets its number
            _, status = os.waitpid(pid, 0)
            if lifeline is None:
                continue
            if has_keepers and os.WIFSIGNALED(status):  # this process has adopted its descendants
                _kill_adopted(lifelines)
            if lifeline in selector.get_map():
                selector.unregister(lifeline)
            gone.append((lifeline, os.waitstatus_to_exitcode(status)))
    # Told last: by then its descendants that were killed are waited for, too.
    for lifeline, exit_code in gone:
        with contextlib.suppress(OSError):
            lifeline.sendall(str(exit_code).encode())
        lifeline.close()


def _kill_adopted(keepers: Collection[int]) -> None:
    """Kill the children that are no keepers: those that keepers left to this process."""
    deadline = time.monotonic() + KILL_SECONDS
    while time.monotonic() < deadline:
        adopted = [
            child
            for child in psutil.Process().children()
            if child.pid not in keepers and status_of(child) not in (None, psutil.STATUS_ZOMBIE)
        ]
        if not adopted:
            return
        for child in adopted:
            kill_descendants(child, itself=True)


# --- the two processes of a call --------------------------------------------------------------


def _fork_from_keeper(sock: socket.socket) -> None:
    """Return in a worker, whose keeper this process is: it ends what the worker leaves behind."""
    adopt_orphans()
    if (worker := os.fork()) == 0:
        die_with_parent()
        return
    sock.close()
    code = None
    try:
        while code is None:
            pid, status = os.wait()
            if pid == worker:
                code = os.waitstatus_to_exitcode(status)
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        kill_descendants(psutil.Process())
    except ChildProcessError:
        pass
    os._exit(1 if code is None else code if code >= 0 else 128 - code)


def answer_call(
    work: Work, next_frame: Callable[[], dict[str, Any]], send: Callable[[bytes], object]
) -> NoReturn:
    """Do the work of the call that comes, answer it, and end this process."""
    lock = threading.Lock()

    def ask(message: Any) -> Any:
        with lock:
            send(encode({"message": message}))
            return next_frame()["reply"]

    try:
        frame = encode({"result": work(next_frame()["payload"], ask)})
    except BaseException as error:
        frame = encode({"error": failure_of(error)})
    with contextlib.suppress(Exception):  # an agent may have replaced or closed them
        sys.stdout.flush()
        sys.stderr.flush()
    with contextlib.suppress(OSError):
        send(frame)
    os._exit(0)


def failure_of(error: BaseException) -> dict[str, str]:
    """Type, message and traceback of an exception, whatever its class does."""
    try:
        where = "".join(traceback.format_exception(error))
    except BaseException:
        where = ""
    kind = clean(full_name_of(type(error)))
    return {"type": kind, "message": describe(error), "traceback": clean(capped(where))}
