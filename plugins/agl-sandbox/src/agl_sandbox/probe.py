"""What a probe tries from behind a wall, and what it is to find there."""

import contextlib
import hashlib
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from agl.runner.sandbox import Findings

CLOSED = "closed"

READ_FILE = "read a file that only the runner may read"
READ_ENVIRONMENT = "read the runner's environment"
READ_MEMORY = "read the runner's memory"
SIGNAL = "signal the runner"
SEE_PROCESSES = "see other processes"
OWN_ENVIRONMENT = "find what is not for it in its own environment"
CONNECT = "connect to a port of this machine"
UNIX_SOCKET = "connect to a Unix socket"
ABSTRACT_SOCKET = "connect to an abstract Unix socket"


@contextlib.contextmanager
def prey(allowed: list[str], *, has_own: bool = False) -> Generator[dict[str, Any]]:
    """What a probe is to go for, for as long as the block lasts.

    Args:
        allowed: Names of environment variables that agents may have.
        has_own: Agents may have further ones, with other values than here; as from an image.
    """
    folder = Path(tempfile.mkdtemp(prefix="agl-probe-"))
    secret = folder / "secret"
    secret.touch(0o600)
    secret.write_text("not for agents")
    folder.chmod(0o755)
    abstract = f"\0agl-probe-{secrets.token_hex(8)}"
    listener, unix, hidden = socket.socket(), *(socket.socket(socket.AF_UNIX) for _ in range(2))
    with listener, unix, hidden:
        listener.bind(("127.0.0.1", 0))
        unix.bind(str(folder / "socket"))
        (folder / "socket").chmod(0o777)
        for each in (listener, unix):
            each.listen()
        if os.path.exists("/proc/self/ns"):
            hidden.bind(abstract)
            hidden.listen()
        try:
            yield {
                "pid": os.getpid(),
                "namespace": _namespace(),
                "folder": (own := os.path.realpath("/proc/self")),
                "birth": _birth(own),
                "file": str(secret),
                "port": listener.getsockname()[1],
                "unix": str(folder / "socket"),
                "abstract": abstract,
                "allowed": allowed,
                "values": _digests(os.environ) if has_own else None,
            }
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def try_all(goals: Mapping[str, Any]) -> Findings:
    """Try everything, in the process of an attempt.

    Args:
        goals: From ``prey``.
    """
    folder = goals["folder"]
    # In another namespace of processes the runner's number is another's; 1 is even this one's.
    is_runner = _birth(folder) == goals["birth"]
    may_signal = _namespace() in (goals["namespace"], None)
    tries: dict[str, Callable[[], str | None]] = {
        READ_FILE: lambda: Path(goals["file"]).read_text(),
        READ_ENVIRONMENT: lambda: _environment(f"{folder}/environ") if is_runner else None,
        READ_MEMORY: lambda: _opens(f"{folder}/mem") if is_runner else None,
        SIGNAL: lambda: _takes_signals(goals["pid"]) if may_signal else None,
        SEE_PROCESSES: _others,
        OWN_ENVIRONMENT: lambda: _not_allowed(goals["allowed"], goals["values"]),
        CONNECT: lambda: _connects(socket.AF_INET, ("127.0.0.1", goals["port"])),
        UNIX_SOCKET: lambda: _connects(socket.AF_UNIX, goals["unix"]),
        ABSTRACT_SOCKET: lambda: _connects(socket.AF_UNIX, goals["abstract"]),
    }
    return {name: _found(attempt) for name, attempt in tries.items()}


def _found(attempt: Callable[[], str | None]) -> str:
    try:
        got = attempt()
    except OSError:
        return CLOSED
    return f"open: {got}" if got else CLOSED


def _birth(folder: str) -> str | None:
    """When the process of a folder in /proc started, in ticks of its machine."""
    try:
        return Path(folder, "stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def _namespace() -> str | None:
    """Of this process's numbers of processes."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _takes_signals(pid: int) -> str:
    os.kill(pid, 0)
    return f"process {pid} takes signals"


def _environment(path: str) -> str | None:
    names = [line.split(b"=")[0] for line in Path(path).read_bytes().split(b"\0") if line]
    return f"{len(names)} variables"


def _opens(path: str) -> str:
    with open(path, "rb"):
        return path


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
        found = _digests(has)
        more = {name for name in more if found[name] == values.get(name)}
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
