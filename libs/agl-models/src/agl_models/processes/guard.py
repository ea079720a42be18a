"""Runs a command that must not outlive the process that asked for it.

    python -m agl_models.processes.guard PARENT_PID GRACE_SECONDS COMMAND [ARGUMENT]...

The command gets a session of its own. When the parent is gone, killed for example, or this process
is told to end, the whole session is told to end, and killed after the time of grace. So neither a
server nor a training keeps memory or a port after the run that started it.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time

POLL_SECONDS = 0.1


def main(arguments: list[str]) -> int:
    """Run the command; the exit code is its own."""
    parent, grace, command = int(arguments[0]), float(arguments[1]), arguments[2:]
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: signals.append(number))
    child = subprocess.Popen(command, start_new_session=True)
    while child.poll() is None and not signals and os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    if child.poll() is None:
        _signal(child.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace)
    _signal(child.pid, signal.SIGKILL)  # whatever of the session is left
    return child.wait()


def _signal(session: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(session, number)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    # As a shell says it: the command was ended by a signal.
    sys.exit(code if code >= 0 else 128 - code)
