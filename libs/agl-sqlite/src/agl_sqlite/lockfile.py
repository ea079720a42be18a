"""A file that one process at a time holds, and that says which."""

import contextlib
import os
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout


class HeldError(Exception):
    """Another one holds the file; the argument says who, as ``process 4711``."""


class LockFile:
    """Holds a file until ``release``, or until the process dies, however it dies.

    A process forked from this one does not hold it: it may outlive this one.

    Args:
        path: The file, which gets the number of the process; its folder must be there.

    Raises:
        HeldError: Another one holds it, in this process or another.
        OSError: It cannot be made, or lies where nothing can be locked.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.path.abspath(path)
        self._lock = FileLock(
            self._path, 0, 0o600, thread_local=False, fallback_to_soft=False, on_acquired=self._note
        )
        num_gone = 0
        while True:
            try:
                self._lock.acquire()
                return
            except Timeout:
                try:
                    if is_held(self._path):  # else only a look of ``is_held`` was in the way
                        raise HeldError(_owner(self._path)) from None
                except FileNotFoundError:  # released in this moment; or no file can be made there
                    if (num_gone := num_gone + 1) == 5:
                        raise

    def _note(self, file: int) -> None:
        self._file = os.fstat(file)
        os.ftruncate(file, 0)
        os.write(file, str(os.getpid()).encode())

    def release(self) -> None:
        """Give the file free, and remove it unless another one lies in its place."""
        with contextlib.suppress(OSError):
            if self._lock.is_locked and os.path.samestat(self._file, os.stat(self._path)):
                os.unlink(self._path)
        self._lock.release()


def lock_of(folder: Path) -> FileLock:
    """A lock that threads and processes wait for; a block of it may lie in another one."""
    return FileLock(folder / "lock", is_singleton=True, poll_interval=0.01, fallback_to_soft=False)


def is_held(path: str | os.PathLike[str]) -> bool:
    """Whether somebody holds a file. Who takes it meanwhile is not refused.

    Raises:
        OSError: There is none, or nothing can be locked where it lies.
    """
    with Path(path).open("rb") as file:
        try:
            _look(file)
        except (BlockingIOError, PermissionError):
            return True
    return False


def is_taken(path: Path) -> bool:
    """Whether somebody holds a file; nobody does where there is none."""
    with contextlib.suppress(FileNotFoundError):
        return is_held(path)
    return False


def _look(file: BinaryIO) -> None:
    try:
        import fcntl
    except ImportError:  # Windows, where nobody reads what another one has locked
        file.read(1)
    else:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


def _owner(path: str) -> str:
    with contextlib.suppress(OSError):  # it is free by now
        return f"process {Path(path).read_text('utf-8', 'replace').strip()}"
    return "another process"
