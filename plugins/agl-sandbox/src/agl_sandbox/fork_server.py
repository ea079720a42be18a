"""Calls in fresh processes, each forked from one in which no agent's code has run.

``agl_sandbox.forked_worker`` is what runs there, and says who forks whom.
"""

import asyncio
import contextlib
import os
import socket
import threading
import warnings
from collections.abc import Awaitable, Callable
from typing import Any, BinaryIO

from agl.errors import AglError
from agl_processes.tree import describe_exit
from agl_sandbox.forked_worker import (
    HEADER_BYTES,
    MAX_SOCKETS,
    FrameError,
    OnMessage,
    Work,
    decode,
    encode,
    hide_descriptors,
    length_of,
    serve,
)
from agl_sandbox.output import Output

MAX_CALL_BYTES = 512 * 1024 * 1024
"""Most bytes that a child may send in one call."""
END_SECONDS = 1.0
"""How long a child that has answered, or closed its socket, may take to end by itself."""
KILL_SECONDS = 30.0
"""Longest that a call waits for its processes to be gone; then the fork server hangs."""

OnSockets = Callable[[list[socket.socket]], Awaitable[None]]
"""Gets the sockets that the enclosure hands out, before the work begins; it has to close them."""


class CallFailedError(AglError, RuntimeError):
    """A call came to no result: its process died, wrote nonsense, or its work raised."""

    failure: dict[str, str] | None = None
    """What the work raised: ``type``, ``message``, ``traceback``; None where it was not that."""


class ForkServerGoneError(AglError, RuntimeError):
    """The process that forks is gone; none of its calls can be made any more."""


class ForkServerClient:
    """The caller's end of a process that runs ``agl_sandbox.forked_worker.serve``.

    Args:
        control: A socket whose other end that process serves.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._lock = threading.Lock()
        self.is_gone = False
        """Whether a call has found that there can be no further ones."""

    async def call(
        self,
        payload: Any,
        *,
        timeout: float | None = None,
        on_message: OnMessage | None = None,
        details: Any = None,
        on_sockets: OnSockets | None = None,
        name: str = "grader",
    ) -> Any:
        """Do the work in a fresh child, and return when all its processes are gone.

        They are killed at the timeout, and when the caller is cancelled.

        Args:
            payload: What the work gets; JSON.
            timeout: Seconds until it is killed; None for no limit.
            on_message: Answers what the work asks meanwhile.
            details: What the enclosure gets, if there is one; JSON.
            on_sockets: Needed with, and only with, an enclosure.
            name: Begins each line that its processes print.

        Returns:
            What the work returned; JSON from a process that an agent may hold.

        Raises:
            FrameError: JSON cannot hold the payload.
            TimeoutError: It ran longer than ``timeout``.
            CallFailedError: There is no result.
            ForkServerGoneError: There can be no further calls. A cancelled caller gets a
                ``CancelledError`` instead, and finds ``is_gone`` set.
        """
        frame = encode({"payload": payload})
        with contextlib.closing(Output(name)) as output:
            ours, lifeline = self._start(encode({"details": details}), output.writing)
            exit_code, has_ended, is_cancelled = 0, False, False
            try:
                try:
                    async with asyncio.timeout(timeout):
                        if on_sockets is not None:
                            await _enclosed(ours, on_sockets)
                        reader, writer = await asyncio.open_connection(sock=ours)
                        try:
                            result = await converse(reader, writer, frame, on_message)
                        finally:
                            writer.transport.abort()
                    has_ended = True
                    return result
                except ClosedError:
                    has_ended = True
                    raise
                except asyncio.CancelledError:
                    is_cancelled = True
                    raise
                finally:
                    ours.close()
                    exit_code = await _ended(lifeline, END_SECONDS if has_ended else 0.0)
            except ClosedError:
                how = describe_exit(exit_code)
                raise CallFailedError(f"its process gave no answer: {how}") from None
            except ForkServerGoneError as error:
                self.is_gone = True
                if is_cancelled:
                    raise asyncio.CancelledError from error
                raise

    def close(self) -> None:
        """End the process and all calls; may be called again."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)  # forked processes may hold copies of it
        self._control.close()

    def _start(self, frame: bytes, output: BinaryIO) -> tuple[socket.socket, socket.socket]:
        """Our ends of the sockets to the work and to what ends it."""
        ours, theirs = socket.socketpair()
        lifeline, their_lifeline = socket.socketpair()
        with theirs, their_lifeline, output:
            passed = [theirs.fileno(), their_lifeline.fileno(), output.fileno()]
            try:
                with self._lock:
                    sent = socket.send_fds(self._control, [frame], passed)
                    self._control.sendall(frame[sent:])
            except OSError as error:
                self.is_gone = True
                for each in (ours, lifeline):
                    each.close()
                raise ForkServerGoneError(
                    f"the process that forks for calls is gone: {error}"
                ) from None
        for each in (ours, lifeline):
            each.setblocking(False)
        return ours, lifeline


class ForkServer(ForkServerClient):
    """A clean process, forked from this one, which forks a fresh child for each call.

    To be made before any agent's code has run here, and before there are threads. Files and sockets
    that are open are closed to the children; their input is empty, and what they print is copied.

    Args:
        work: Done in the child: payload and ``ask`` -> result. What ``ask`` sends is answered by
            ``on_message`` of the call.
    """

    def __init__(self, work: Work) -> None:
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        with warnings.catch_warnings():  # Python 3.12 warns where there are threads
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if self._pid == 0:
            try:
                hide_descriptors((1, 2, theirs.fileno()), of_files=True)
                serve(theirs, work, is_parent_alive=lambda: os.getppid() == parent)
            finally:
                os._exit(1)  # never back into the code of the parent
        theirs.close()
        super().__init__(ours)

    def close(self) -> None:
        """End the process and all calls, and wait for it; may be called again."""
        super().close()
        if self._pid:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
            self._pid = 0


# --- one call ---------------------------------------------------------------------------------


class ClosedError(Exception):
    """The far side has closed its socket without an answer."""


async def _enclosed(sock: socket.socket, on_sockets: OnSockets) -> None:
    """Take the sockets of the enclosure; nothing of an agent's has run in it yet."""
    loop = asyncio.get_running_loop()
    readable = loop.create_future()
    loop.add_reader(sock, lambda: readable.done() or readable.set_result(None))
    try:
        await readable
    finally:
        loop.remove_reader(sock)
    handed, descriptors, _, _ = socket.recv_fds(sock, 1, MAX_SOCKETS)
    if not handed:
        raise ClosedError
    await on_sockets([socket.socket(fileno=number) for number in descriptors])


async def converse(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    frame: bytes,
    on_message: OnMessage | None,
) -> Any:
    """Send the payload of a call, answer what is asked, and return the result.

    Raises:
        CallFailedError: The call has no result.
        ClosedError: The far side went away.
    """
    num_bytes = 0
    await _tell(writer, frame)
    while True:
        try:
            body = await _next(reader)
            num_bytes += len(body)
            if num_bytes > MAX_CALL_BYTES:
                raise CallFailedError(f"its process sent more than {MAX_CALL_BYTES} bytes")
            message = decode(body)
        except FrameError as error:
            raise CallFailedError(f"its process sent {error}") from None
        if "message" in message and on_message is not None:
            await _tell(writer, encode({"reply": await on_message(message["message"])}))
            continue
        failure = message.get("error")
        if isinstance(failure, dict):
            texts = {name: str(failure.get(name, "")) for name in ("type", "message", "traceback")}
            error = CallFailedError(f"{texts['type']}: {texts['message']}")
            error.failure = texts
            raise error
        if "result" not in message:
            raise CallFailedError("its process sent a message that is no result")
        return message["result"]


async def _tell(writer: asyncio.StreamWriter, frame: bytes) -> None:
    try:
        writer.write(frame)
        await writer.drain()
    except ConnectionError:
        raise ClosedError from None


async def _next(reader: asyncio.StreamReader) -> bytes:
    try:
        length = length_of(await reader.readexactly(HEADER_BYTES))
        return await reader.readexactly(length)
    except (EOFError, ConnectionError):
        raise ClosedError from None


async def _ended(lifeline: socket.socket, seconds: float) -> int:
    """Wait for the end of a call's processes, and after ``seconds`` end them; their exit code."""
    reading = asyncio.ensure_future(_read_to_end(lifeline))
    try:
        await asyncio.wait([reading], timeout=seconds)
        if not reading.done():
            with contextlib.suppress(OSError):
                lifeline.shutdown(socket.SHUT_WR)
            await asyncio.wait([reading], timeout=KILL_SECONDS)
        if not reading.done() or not reading.result():
            raise ForkServerGoneError(
                "the process that forks for calls does not say that one ended"
            )
        code = int(reading.result())
        return 128 - code if code > 128 else code  # as a signal is told
    finally:
        reading.cancel()
        lifeline.close()


async def _read_to_end(sock: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionError):
        while chunk := await asyncio.get_running_loop().sock_recv(sock, 64):
            data += chunk
    return data
