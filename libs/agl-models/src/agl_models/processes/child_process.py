"""Commands in processes of their own: their log, their certain end, the reason of a failure."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path

from agl.env import TOKENS

TAIL_LINES = 12
"""How many lines of a log an error shows."""
GRACE_SECONDS = 10.0
"""How long a command may take to end in order."""


@contextlib.asynccontextmanager
async def child(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A running command, under ``guard``; ended with all its children when the block ends.

    What it writes comes to the end of ``log``; ``environment`` is added to this process's own.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    given = environment or {}
    with log.open("ab") as file:
        os.write(file.fileno(), f"--- {' '.join(command)}\n".encode())
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "agl_models.processes.guard"),
            *(str(os.getpid()), str(GRACE_SECONDS)),
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            # Unbuffered: a log is read while the command runs, and after it was killed.
            env={**os.environ, **dict.fromkeys(TOKENS, ""), "PYTHONUNBUFFERED": "1", **given},
            # Ctrl+C is for this process, which then ends its children in order.
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                # Shielded: a cancelled run still waits, so that ports and memory are free after it.
                await asyncio.shield(asyncio.wait_for(process.wait(), GRACE_SECONDS + 5))
            except TimeoutError:
                process.kill()


def tail(log: Path) -> str:
    """The last lines of a log, for an error."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    shown = [line for line in lines if line.strip()][-TAIL_LINES:]
    return "\n".join(f"    {line}" for line in shown)
