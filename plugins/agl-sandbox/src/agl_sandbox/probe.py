"""What a probe tries from behind a wall, and what it is to find there."""

import contextlib
import fcntl
import hashlib
import os
import secrets
import socket
import stat
import tempfile
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from agl.runner.sandbox import Findings

CLOSED = "closed"

READ_FILE = "read a file that only the runner may read"
READ_ENVIRONMENT = "read the runner's environment"
READ_MEMORY = "read the runner's memory"
SIGNAL = "signal the runner"
SEE_PROCESSES = "see other processes"
READ_LOG = "read a file that the runner writes"
USE_DESCRIPTOR = "use what the runner has open"
WRITE_LEFT_OPEN = "write to a file that was opened before its attempt"
OWN_ENVIRONMENT = "find what is not for it in its own environment"
CONNECT = "connect to a port of this machine"
UNIX_SOCKET = "connect to a Unix socket"
ABSTRACT_SOCKET = "connect to an abstract Unix socket"


@contextlib.contextmanager
def open_targets(allowed: list[str], *, has_own: bool = False) -> Generator[dict[str, Any]]:
    """What a probe tries to reach; it exists as long as the block lasts.

    Args:
        allowed: Names of environment variables that agents may have.
        has_own: Agents may have further ones, with other values than here; as from an image.
    """
    abstract = f"\0agl-probe-{secrets.token_hex(8)}"
    listener, unix, hidden = socket.socket(), *(socket.socket(socket.AF_UNIX) for _ in range(2))
    temporary = tempfile.TemporaryDirectory(prefix="agl-probe-", ignore_cleanup_errors=True)
    with temporary as name, listener, unix, hidden:
        folder = Path(name)
        secret = folder / "secret"
        secret.touch(0o600)
        secret.write_text("not for agents")
        folder.chmod(0o755)
        listener.bind(("127.0.0.1", 0))
        unix.bind(str(folder / "socket"))
        (folder / "socket").chmod(0o777)
        for each in (listener, unix):
            each.listen()
        if os.path.exists("/proc/self/ns"):
            hidden.bind(abstract)
            hidden.listen()
        yield {
            "pid": os.getpid(),
            "namespace": _namespace(),
            "folder": (own := os.path.realpath("/proc/self")),
            "start_time": _start_time(own),
            "file": str(secret),
            "port": listener.getsockname()[1],
            "unix": str(folder / "socket"),
            "abstract": abstract,
            "allowed": allowed,
            "opened": [one.key for one in _descriptors()],
            "written": written_files(),
            "values": _digests(os.environ) if has_own else None,
        }


def try_all(targets: Mapping[str, Any]) -> Findings:
    """Try everything, in the process of an attempt."""
    folder = targets["folder"]
    # In another namespace of processes the runner's number is another's; 1 is even this one's.
    is_runner = _start_time(folder) == targets["start_time"]
    may_signal = _namespace() in (targets["namespace"], None)
    tries: dict[str, Callable[[], str | None]] = {
        READ_FILE: lambda: Path(targets["file"]).read_text(),
        READ_ENVIRONMENT: lambda: _opens(f"{folder}/environ") if is_runner else None,
        READ_MEMORY: lambda: _opens(f"{folder}/mem") if is_runner else None,
        SIGNAL: lambda: _takes_signals(targets["pid"]) if may_signal else None,
        SEE_PROCESSES: _others,
        READ_LOG: lambda: _any_opens(targets["written"]),
        USE_DESCRIPTOR: lambda: _runners_descriptor(targets["opened"]),
        WRITE_LEFT_OPEN: lambda: next(iter(written_files()), None),
        OWN_ENVIRONMENT: lambda: _not_allowed(targets["allowed"], targets["values"]),
        CONNECT: lambda: _connects(socket.AF_INET, ("127.0.0.1", targets["port"])),
        UNIX_SOCKET: lambda: _connects(socket.AF_UNIX, targets["unix"]),
        ABSTRACT_SOCKET: lambda: _connects(socket.AF_UNIX, targets["abstract"]),
    }
    return {name: _found(attempt) for name, attempt in tries.items()}


def _found(attempt: Callable[[], str | None]) -> str:
    try:
        got = attempt()
    except OSError:
        return CLOSED
    return f"open: {got}" if got else CLOSED


class _Descriptor(NamedTuple):
    """Something that this process has open."""

    path: str
    key: list[int]
    """Device and inode: the same wherever it is open."""
    is_file: bool
    may_write: bool


def _descriptors() -> list[_Descriptor]:
    """What leads to others: not event loops, whose inode is everybody's, nor the null device."""
    descriptors: list[_Descriptor] = []
    for name in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd") else ():
        with contextlib.suppress(OSError):  # that of the list itself
            path, about = os.readlink(f"/proc/self/fd/{name}"), os.fstat(int(name))
            is_device = stat.S_ISCHR(about.st_mode) and not os.isatty(int(name))
            if not is_device and not path.startswith("anon_inode:"):
                may_write = fcntl.fcntl(int(name), fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
                key, is_file = [about.st_dev, about.st_ino], stat.S_ISREG(about.st_mode)
                descriptors.append(_Descriptor(path, key, is_file, may_write))
    return descriptors


def written_files() -> list[str]:
    """Regular files that this process has open to write to."""
    return [one.path for one in _descriptors() if one.is_file and one.may_write]


def _runners_descriptor(opened: list[list[int]]) -> str | None:
    """One that is open here and where the runner is, and is more than a path that anybody reads."""
    for one in _descriptors():
        if one.key in opened and (one.may_write or not os.access(one.path, os.R_OK)):
            return one.path
    os.close(os.open("/dev/tty", os.O_RDWR))
    return "/dev/tty"


def _start_time(folder: str) -> str | None:
    """When the process of a folder in /proc started, in ticks of its machine."""
    try:
        return Path(folder, "stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def _namespace() -> str | None:
    """The namespace of processes that this one is in."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _takes_signals(pid: int) -> str:
    os.kill(pid, 0)
    return f"process {pid} takes signals"


def _opens(path: str) -> str:
    with open(path, "rb"):
        return path


def _any_opens(paths: list[str]) -> str | None:
    for path in paths:
        with contextlib.suppress(OSError):
            return _opens(path)
    return None


def _others() -> str | None:
    """Processes beyond this one and those that brought it here."""
    own, pid = {1}, os.getpid()
    while pid > 1:
        own.add(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    others = [name for name in os.listdir("/proc") if name.isdigit() and int(name) not in own]
    return f"{len(others)} of them" if others else None


def _not_allowed(allowed: list[str], values: dict[str, str] | None) -> str | None:
    lines = Path("/proc/self/environ").read_bytes().split(b"\0")
    pairs = (line.decode(errors="replace").partition("=") for line in lines if line)
    has = {name: value for name, _, value in pairs} | dict(os.environ)
    more = {*has} - {*allowed}
    if values is not None:
        digests = _digests(has)
        more = {name for name in more if digests[name] == values.get(name)}
    return ", ".join(sorted(more)) or None


def _digests(variables: Mapping[str, str]) -> dict[str, str]:
    """What tells whether a value is the same, and does not tell the value."""
    return {
        name: hashlib.sha256(f"{name}={value}".encode(errors="replace")).hexdigest()
        for name, value in variables.items()
    }


def _connects(family: int, address: Any) -> str:
    with socket.socket(family) as sock:
        sock.settimeout(2)
        sock.connect(address)
    return "somebody listens"
