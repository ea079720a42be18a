"""How much memory is left, for whoever estimates what a training will need."""

import contextlib
from pathlib import Path

import psutil


def free_memory(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that this process can still take of the machine, its container and its ulimit."""
    old = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")  # version 1
    limits = [
        psutil.virtual_memory().available,
        _left_of_address_space(),
        _left_of_cgroup(cgroup, "memory.max", "memory.current", "inactive_file"),
        _left_of_cgroup(cgroup / "memory", *old),
    ]
    return min(limit for limit in limits if limit is not None)


def _left_of_address_space() -> int | None:
    """What ``ulimit -v`` leaves; None if there is no such limit."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    return max(0, limit - psutil.Process().memory_info().vms)


def _left_of_cgroup(folder: Path, limit: str, usage: str, cache: str) -> int | None:
    """What a container's limit leaves; the kernel drops unused page cache before it refuses."""
    try:
        most, used = (int((folder / name).read_text()) for name in (limit, usage))
    except (OSError, ValueError):  # there is no such file, or its limit is "max"
        return None
    with contextlib.suppress(OSError):
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        used -= int(stat.get(cache, 0))
    return max(0, most - used)
