"""A server's Unix socket: nobody but its user connects to it, and one server listens on it."""

import errno
import fcntl
import os
import socket
import stat
from contextlib import suppress

from agl.errors import ConfigError


class _UnixSocket(socket.socket):
    """Takes its file along when it is closed."""

    def listen_at(self, path: str) -> None:
        self.bind(path)
        self._path, self._file, self._owner = path, os.stat(path), os.getpid()
        os.chmod(path, 0o600)  # nobody can connect before this listens
        self.listen(2048)

    def close(self) -> None:
        # A forked child has a copy; and somebody may have put another file there.
        with suppress(OSError, AttributeError):
            if os.getpid() == self._owner and os.path.samestat(self._file, os.stat(self._path)):
                os.unlink(self._path)
        super().close()


def bind_unix(path: str) -> socket.socket:
    """Listen on a file that this makes, with mode 0600, and that goes when the socket is closed.

    What a dead server left there is replaced.

    Raises:
        ConfigError: Others may write to the folder, somebody listens there, or it is another file.
    """
    # Not through links, which may be turned.
    folder, name = os.path.split(os.path.abspath(path))
    folder = os.path.realpath(folder)
    path = os.path.join(folder, name)
    sock = _UnixSocket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _check_folder(folder)
        lock = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # of two that start, none may replace the other's
            _remove_stale(path)
            sock.listen_at(path)
        finally:
            os.close(lock)
    except OSError as error:
        sock.close()
        reason = error.strerror or error
        raise ConfigError(f"cannot serve on the Unix socket {path}: {reason}") from None
    return sock


def _check_folder(folder: str) -> None:
    status = os.stat(folder)
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise OSError(
            errno.EPERM,
            "others may write to its folder; take one of your own, as made by: mkdir -m 700 FOLDER",
        )


def _remove_stale(path: str) -> None:
    if not os.path.lexists(path):
        return None
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise OSError(errno.EEXIST, "another file is there; choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return os.unlink(path)
        except BlockingIOError:
            pass  # somebody who is busy
    raise OSError(errno.EADDRINUSE, "in use; stop what listens there, or choose another path")
