"""A file that one process at a time holds, and that says which."""

import contextlib
import os
import sys
import weakref
from typing import Protocol


class HeldError(Exception):
    """Another one holds the file; the argument says who, as ``process 4711``."""


class LockFile:
    """Holds a file until ``release``, or until the process dies, however it dies.

    A process forked from this one does not hold it: it may outlive this one.

    The file has the number of the process. Whoever holds it removes it in the end; one that a dead
    process left is taken over.

    Args:
        path: The file; its folder must be there.

    Raises:
        HeldError: Another one holds it, in this process or another.
        OSError: It cannot be made, or lies where nothing can be locked.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.path.abspath(path)
        # Another user may have left a link there, for us to overwrite what it points to.
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        while True:
            self._file = os.open(self._path, flags, 0o600)
            try:
                while not _try_lock(self._file):
                    if _try_lock(self._file, is_shared=True):  # only ``is_held`` had it
                        _unlock(self._file)
                        continue
                    owner = os.read(self._file, 32).decode(errors="replace").strip()
                    raise HeldError(_owner(owner))
                if self._is_in_place():
                    os.ftruncate(self._file, 0)
                    os.write(self._file, str(os.getpid()).encode())
                    break
            except BaseException:
                os.close(self._file)
                raise
            # Its last owner removed it between our opening and our locking it.
            os.close(self._file)
        forget_in_forks(self)

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file), os.stat(self._path))
        except FileNotFoundError:
            return False

    def forget(self) -> None:
        """Close this process's copy; for a forked one, so that it does not hold the file too."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def release(self) -> None:
        """Give the file free, and remove it."""
        if self._file < 0:
            return
        if not self._is_in_place():  # the one there is another owner's
            os.close(self._file)
        elif sys.platform == "win32":  # an open file cannot be removed there
            os.close(self._file)
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        else:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            _unlock(self._file)
            os.close(self._file)
        self._file = -1


def is_held(path: str | os.PathLike[str]) -> bool:
    """Whether somebody holds a file. Who takes it meanwhile is not refused, except on Windows.

    Raises:
        OSError: There is none, or nothing can be locked where it lies.
    """
    file = os.open(path, os.O_RDONLY)
    try:
        return not _try_lock(file, is_shared=True)
    finally:
        os.close(file)


class Forgetting(Protocol):
    """Something of which a forked process shall have no copy."""

    def forget(self) -> None:
        """Close this process's copy; it may be closed already."""
        ...


_held: "weakref.WeakSet[Forgetting]" = weakref.WeakSet()


def forget_in_forks(held: Forgetting) -> None:
    """Have ``held.forget`` called in processes that are forked from this one."""
    _held.add(held)


def _after_fork_in_child() -> None:
    for lock in list(_held):
        lock.forget()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _owner(number: str) -> str:
    import psutil

    if number.isdecimal() and psutil.pid_exists(int(number)):
        return f"process {number}"
    return f"a process other than {number or 'the one'} that locked it, which has ended"


if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: int, *, is_shared: bool = False) -> bool:
        # Far behind the owner's number, so that others can read that.
        os.lseek(file, 1 << 20, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        finally:
            os.lseek(file, 0, os.SEEK_SET)
        return True

    def _unlock(file: int) -> None:
        os.lseek(file, 1 << 20, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try_lock(file: int, *, is_shared: bool = False) -> bool:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(file: int) -> None:
        # A forked child holds the same lock; only this frees it for good.
        fcntl.flock(file, fcntl.LOCK_UN)
