"""The processes that descend from one of ours: finding them, ending them, and how they ended."""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Collection

import psutil

PARENT_LOOK_SECONDS = 0.5
"""How often a process looks whether its parent still lives."""
KILL_SECONDS = 5.0
"""How long killing is repeated while those that are killed leave new processes."""
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, so that none gets out of reach.

    Linux only; elsewhere a process that left both its parent and its process group is not found.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans(own: Collection[int]) -> None:
    """Wait for adopted processes that have ended, so that they do not stay as zombies.

    Args:
        own: Ids of the children whose end somebody else waits for.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(ChildProcessError):
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while (ended := os.waitid(os.P_ALL, 0, flags)) and ended.si_pid not in own:
            os.waitpid(ended.si_pid, 0)


def kill_descendants(root: psutil.Process, *, itself: bool = False) -> None:
    """Kill every descendant of ``root``, and the descendants that they make meanwhile.

    Args:
        root: Whose.
        itself: Whether it is killed, too.
    """
    # Kept from look to look: the descendants of a killed one are somebody else's children.
    processes: dict[psutil.Process, None] = {root: None} if itself else {}
    deadline = time.monotonic() + KILL_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(psutil.NoSuchProcess):
            processes |= dict.fromkeys(root.children(recursive=True))
        living = [one for one in processes if status_of(one) not in (None, psutil.STATUS_ZOMBIE)]
        if not living:
            return
        for process in reversed(living):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.01)


def status_of(process: psutil.Process) -> str | None:
    """What the process does, as psutil names it; None when it is gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status()
    return None


def start_group(parent: int) -> None:
    """Lead a process group of its own, which ends when the process ``parent`` does.

    Args:
        parent: The parent of this process; it may have died by now.
    """
    os.setpgid(0, 0)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_LOOK_SECONDS)
        kill_descendants(psutil.Process())
        kill_group(0)

    threading.Thread(target=watch, name="agl-parent", daemon=True).start()


def kill_group(leader: int) -> None:
    """Kill what is left of a process group.

    Args:
        leader: The child that leads it, and that nobody has waited for yet: until then no other
            process gets its number. 0 is the group of this process.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def describe_exit(exit_code: int) -> str:
    """An exit code in words."""
    if exit_code < 0:
        with contextlib.suppress(ValueError):
            return f"ended by {signal.Signals(-exit_code).name}"
    if exit_code == 0:
        return "exit code 0, though it had not finished; does an agent call os._exit?"
    return f"exit code {exit_code}"
