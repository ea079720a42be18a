"""The life of a forked runner: what it runs, what it says in a pipe, and how it ends."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Generator
from multiprocessing import connection
from typing import Any

from agl.errors import RunnerStuckError, StoreUnavailableError

logger = logging.getLogger("agl.server")

REPLACE_ME = 75
"""Exit code of a runner that is stuck and wants a fresh process (``EX_TEMPFAIL``)."""
STORE_AWAY = 69
"""Exit code of a runner that found no store, for as long as it may wait (``EX_UNAVAILABLE``)."""
WORKING = "at work"
"""What a runner says when it has begun to serve the queue."""
FINISHED = "finished"
"""What a runner says last when it ends in order; an exit code of 0 alone may be its agent's."""
MAX_MESSAGE_BYTES = 3500
"""A message is written in one piece, so that a runner that is killed leaves no half of one."""

Tell = Callable[[str], None]


def run_as_process(main: Callable[[], Coroutine[Any, Any, object]], tell: Tell) -> None:
    """Run a bundle as the whole life of a forked process; does not return.

    At the end ``tell`` gets ``FINISHED``, or what the process dies of.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl+C means
    gc.freeze()  # what the parent has made is no garbage of this process

    async def run() -> None:
        task = asyncio.ensure_future(main())
        with on_sigterm(task.cancel):
            await task

    exit_code = 0
    try:
        asyncio.run(run())
        tell(FINISHED)
    except RunnerStuckError as error:
        tell(str(error))
        exit_code = REPLACE_ME
    except asyncio.CancelledError:
        exit_code = 128 + signal.SIGTERM
    except BaseException as error:
        logger.exception("A process of the run failed")
        tell(f"{type(error).__name__}: {error}")
        # A store with a full disk was asked for a minute: nothing that follows could be stored.
        exit_code = STORE_AWAY if isinstance(error, StoreUnavailableError) else 1
    try:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, AttributeError, ValueError):  # who read it is gone
                stream.flush()
    finally:
        os._exit(exit_code)  # without the exit handlers, which belong to the parent


@contextlib.contextmanager
def on_sigterm(callback: Callable[[], object]) -> Generator[None]:
    """Within the block, SIGTERM calls ``callback`` on the running loop."""
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGTERM, callback)
    except (RuntimeError, ValueError):  # not the main thread: signals are somebody else's
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def teller(messages: "connection.Connection[Any, Any]") -> Tell:
    """Writes the messages of a process into a pipe, if somebody still reads them."""

    def tell(message: str) -> None:
        with contextlib.suppress(OSError):
            messages.send_bytes(message.encode(errors="replace")[:MAX_MESSAGE_BYTES])

    return tell


def messages_of(messages: "connection.Connection[Any, Any]") -> list[str]:
    """The messages of a process that has ended; closes the pipe."""
    said: list[str] = []
    with contextlib.suppress(EOFError, OSError):
        while messages.poll():
            said.append(messages.recv_bytes().decode(errors="replace"))
    messages.close()
    return said
