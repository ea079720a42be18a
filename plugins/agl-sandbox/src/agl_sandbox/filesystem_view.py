"""What of this machine's files is to be seen behind the wall, as options of bubblewrap."""

import os
import stat
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from agl.errors import ConfigError

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/etc")
"""Folders of every system that programs need; what in them is secret is root's alone."""
HOME = "/attempt"
"""The folder of the attempt; each sees its own there."""
MODULES = (".py", ".pyc", ".pyi", ".so")
"""Never hidden, whatever their permissions are: the agent itself may be one."""
MOST_HIDDEN = 500


def shown_paths(read: Iterable[Path]) -> list[Path]:
    """Folders that Python imports from, and what is to be read besides; outermost first."""
    wanted = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, *sys.path}
    executable = Path(sys.executable)
    wanted |= {str(executable.parent), str(executable.resolve().parent.parent)}
    paths = {Path(path).absolute() for path in wanted} | set(read)
    return sorted(path for path in paths if path.exists() and path != Path("/"))


def private_paths(shown: Sequence[Path], but: Iterable[Path]) -> list[Path]:
    """What in these folders agents need not see.

    It is what is open to its owner alone (keys, stores, sockets), and what begins with a dot
    (settings, caches, histories).

    Args:
        shown: Folders; those of the system and of Python's own are not looked through.
        but: What is to be read all the same.

    Raises:
        ConfigError: There is so much of it that this is no project's folder.
    """
    own = [Path(path) for path in (*SYSTEM, sys.prefix, sys.base_prefix)]
    # Targets of links are kept, too: hiding a link hides its target.
    wanted = {*shown, *but} | {path.resolve() for path in (*shown, *but)}
    kept = {path for each in wanted for path in (each, *each.parents)}
    private: dict[Path, None] = {}
    for root in shown:
        if any(root.is_relative_to(path) for path in own):
            continue
        for folder, folders, files in os.walk(root):
            for name in [*folders, *files]:
                path = Path(folder, name)
                if path in kept or name.endswith(MODULES):
                    continue
                if (name.startswith(".") or _is_private(path)) and path.resolve() not in kept:
                    private[path] = None
            done = {*private, *own}
            folders[:] = [name for name in folders if Path(folder, name) not in done]
            if len(private) > MOST_HIDDEN:
                raise ConfigError(
                    f"isolation 'process': {root}, from which Python imports, holds more than "
                    f"{MOST_HIDDEN} files that are their owner's alone; agents would see its "
                    "other ones. Put the agent into a folder of its own"
                )
    return list(private)


def visible_files(
    files: Iterable[str], shown: Iterable[Path], hidden: Sequence[Path]
) -> list[Path]:
    """The files in the system's or in shown folders, but for those in hidden ones."""
    return [
        path
        for path in map(Path, files)
        if any(path.is_relative_to(folder) for folder in (*SYSTEM, *shown))
        and not any(path.is_relative_to(folder) for folder in hidden)
    ]


def _is_private(path: Path) -> bool:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    if stat.S_ISLNK(mode) or mode & 0o077:
        return False
    return not (stat.S_ISDIR(mode) and any(path.glob("*.py")))


def base_options(shown: Sequence[Path], *, network: bool) -> list[str]:
    """Namespaces, and the read-only view that all attempts share."""
    options = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    # Its rights are those over its own namespaces; each attempt gives them up.
    options += ["--cap-add", "ALL", "--die-with-parent", "--new-session"]
    if not network:
        options.append("--unshare-net")
    options += [*_devices(), "--proc", "/proc", "--tmpfs", "/tmp", "--dir", HOME]
    for path in (*map(Path, SYSTEM), *shown):
        for folder in reversed(path.parents):  # which bubblewrap would make for root alone
            options += ["--perms", "0755", "--dir", str(folder)]
        options += ["--ro-bind-try", str(path), str(path)]
    for path in ("/dev", "/"):
        options += ["--remount-ro", path]
    return [*options, "--chdir", "/"]


def hiding_options(paths: Iterable[Path]) -> list[str]:
    """Put nothing in the place of files and folders."""
    options: list[str] = []
    for path in map(str, paths):
        if os.path.isdir(path):
            options += ["--perms", "0555", "--tmpfs", path, "--remount-ro", path]
        elif os.path.exists(path):
            options += ["--ro-bind", os.devnull, path]
    return options


def own_folders(shown: Iterable[Path]) -> list[str]:
    """Folders that each attempt finds empty, and writes to."""
    in_tmp = any(path.is_relative_to("/tmp") for path in shown)
    return [HOME, "/dev/shm", *(() if in_tmp else ("/tmp",))]


def _devices() -> list[str]:
    """Options for devices, as ``--dev`` without root makes the namespaces another user's."""
    options = ["--tmpfs", "/dev", "--dir", "/dev/shm", "--dir", "/dev/pts"]
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        options += ["--dev-bind-try", f"/dev/{name}", f"/dev/{name}"]
    links = {"fd": "/proc/self/fd", "ptmx": "pts/ptmx"}
    links |= {name: f"/proc/self/fd/{n}" for n, name in enumerate(("stdin", "stdout", "stderr"))}
    for name, target in links.items():
        options += ["--symlink", target, f"/dev/{name}"]
    return options
