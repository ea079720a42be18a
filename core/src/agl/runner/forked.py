"""The far side of ``Forker``: the clean process, and the children that it forks for calls.

What the two sides say to each other is JSON in frames: a child may be held by an agent's code, and
so nothing of it is ever unpickled.

Each call gets two processes. The one that does the work is a child of a *keeper*, which adopts what
the work leaves behind, so that all of it ends with the call.
"""

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import psutil

from agl.errors import AglError
from agl.execution.client_server.family import (
    KILL_SECONDS,
    PARENT_LOOK_SECONDS,
    adopt_orphans,
    end_family,
    end_group,
    status_of,
)
from agl.utils.text import capped, clean, describe, full_name_of, parse_json

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""Of one message in either direction."""
HEADER_BYTES = 4
"""Before each frame: its length, big-endian."""
MAX_SOCKETS = 32
"""Most sockets that an enclosure hands out."""
_PR_SET_PDEATHSIG = 1

Ask = Callable[[Any], Any]
"""Sends a message to the caller, and returns what its ``on_message`` returns."""
Work = Callable[[Any, Ask], Any]
"""Runs in a child of its own for each call: payload and ``ask`` -> result; all JSON."""
Enclose = Callable[[Any], list[socket.socket]]
"""Runs in the keeper of each call, before the worker is forked: what the call says of its enclosure
-> sockets that are passed to the caller."""


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
    return cast(dict[str, Any], value)


def receive(sock: socket.socket) -> dict[str, Any]:
    """Wait for a frame on a blocking socket.

    Raises:
        EOFError: The other side has closed it.
        FrameError: See ``decode``.
    """
    return decode(_exactly(sock, length_of(_exactly(sock, HEADER_BYTES))))


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        chunk = sock.recv(min(count - len(data), 1 << 20))
        if not chunk:
            raise EOFError("the other side has closed the socket")
        data += chunk
    return bytes(data)


# --- the clean process ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Call:
    lifeline: socket.socket
    """Its other end is the caller's, who shuts it to end the call. Told how the call ended."""


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
        control: What ``ForkerClient`` writes to.
        work: Done in a fresh child for each call.
        enclose: See ``Enclose``.
        is_parent_alive: Asked now and then; when it is not, this process ends.
    """
    for number in (signal.SIGINT, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)  # the runner decides what they mean
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    adopt_orphans()
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    selector = selectors.DefaultSelector()
    for each in (control, woken):
        selector.register(each, selectors.EVENT_READ)
    calls: dict[int, _Call] = {}

    def forget() -> None:
        """Close, in a child, what is not for it."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        selector.close()
        for each in (control, woken, wake, *(call.lifeline for call in calls.values())):
            each.close()

    while is_parent_alive():
        ready = {key.fileobj for key, _ in selector.select(PARENT_LOOK_SECONDS)}
        with contextlib.suppress(BlockingIOError):
            woken.recv(4096)
        for pid, call in list(calls.items()):
            if call.lifeline in ready:
                selector.unregister(call.lifeline)
                end_group(pid)
        if control in ready:
            try:
                details, (sock, lifeline) = _start_of(control)
            except (EOFError, OSError, ValueError):
                break
            if (pid := os.fork()) == 0:
                forget()
                lifeline.close()
                _keep(sock, work, enclose, details)
            sock.close()
            calls[pid] = _Call(lifeline)
            selector.register(lifeline, selectors.EVENT_READ)
        _reap(calls, selector)
    for pid in calls:
        end_group(pid)
    end_family(psutil.Process())
    _reap(calls, selector)  # which tells the callers
    os._exit(0)


def _start_of(control: socket.socket) -> tuple[Any, list[socket.socket]]:
    header, descriptors, _, _ = socket.recv_fds(control, HEADER_BYTES, 2)
    if not header:
        raise EOFError
    header += _exactly(control, HEADER_BYTES - len(header))
    details = decode(_exactly(control, length_of(header)))["details"]
    return details, [socket.socket(fileno=number) for number in descriptors]


def _reap(calls: dict[int, _Call], selector: selectors.BaseSelector) -> None:
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            pid = ended.si_pid
            call = calls.pop(pid, None)
            if call is not None:
                end_group(pid)  # until it is waited for, no other process gets its number
            _, status = os.waitpid(pid, 0)
            if call is None:
                continue
            if os.WIFSIGNALED(status):  # so it could not see to its family, which is ours now
                _end_strangers(calls)
            if call.lifeline in selector.get_map():
                selector.unregister(call.lifeline)
            with contextlib.suppress(OSError):
                call.lifeline.sendall(str(os.waitstatus_to_exitcode(status)).encode())
            call.lifeline.close()


def _end_strangers(keepers: Collection[int]) -> None:
    """Kill the children that are no keepers: those that keepers left to this process."""
    deadline = time.monotonic() + KILL_SECONDS
    while time.monotonic() < deadline:
        strangers = [
            child
            for child in psutil.Process().children()
            if child.pid not in keepers and status_of(child) not in (None, psutil.STATUS_ZOMBIE)
        ]
        if not strangers:
            return
        for stranger in strangers:
            end_family(stranger, itself=True)


# --- the two processes of a call --------------------------------------------------------------


def _keep(sock: socket.socket, work: Work, enclose: Enclose | None, details: Any) -> NoReturn:
    exit_code = 1
    try:
        die_with_parent()
        os.setsid()
        adopt_orphans()
        if enclose is not None:
            _enclose(sock, enclose, details)
        worker = os.fork()
        if worker == 0:
            die_with_parent()
            _work(sock, work)
        sock.close()
        exit_code = _bury(worker)
    finally:
        os._exit(exit_code)


def _enclose(sock: socket.socket, enclose: Enclose, details: Any) -> None:
    try:
        sockets = enclose(details)
    except BaseException as error:
        sock.sendall(encode({"error": failure_of(error)}))
        raise
    frame = encode({"enclosed": len(sockets)})
    sent = socket.send_fds(sock, [frame], [each.fileno() for each in sockets])
    sock.sendall(frame[sent:])
    for each in sockets:
        each.close()


def _bury(worker: int) -> int:
    """Wait for the worker, end what it leaves behind, and return its exit code."""
    code = None
    try:
        while code is None:
            pid, status = os.wait()
            if pid == worker:
                code = os.waitstatus_to_exitcode(status)
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        end_family(psutil.Process())
    except ChildProcessError:
        pass
    return 1 if code is None else code if code >= 0 else 128 - code


def _work(sock: socket.socket, work: Work) -> NoReturn:
    answer: dict[str, Any]

    asking = threading.Lock()

    def ask(message: Any) -> Any:
        with asking:
            sock.sendall(encode({"message": message}))
            return receive(sock)["reply"]

    try:
        answer = {"result": work(receive(sock)["payload"], ask)}
        frame = encode(answer)
    except BaseException as error:
        frame = encode({"error": failure_of(error)})
    with contextlib.suppress(Exception):  # an agent may have replaced or closed them
        sys.stdout.flush()
        sys.stderr.flush()
    with contextlib.suppress(OSError):
        sock.sendall(frame)
    os._exit(0)


def failure_of(error: BaseException) -> dict[str, str]:
    """Type, message and traceback of an exception, whatever its class does."""
    try:
        where = "".join(traceback.format_exception(error))
    except BaseException:
        where = ""
    kind = clean(full_name_of(type(error)))
    return {"type": kind, "message": describe(error), "traceback": clean(capped(where))}


def die_with_parent() -> None:
    """Be killed when the parent dies; on Linux. A change of user takes it back."""
    if sys.platform == "linux":
        LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if sys.platform == "linux":
    LIBC = ctypes.CDLL(None, use_errno=True)
    """Loaded once, as each call has two processes that need it."""
