"""How much memory is left, for whoever estimates what a training will need."""

import contextlib
import os
from pathlib import Path


def free_memory(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that this process can still take of the machine, its container and its ulimit."""
    old = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")  # version 1
    limits = [
        _available(),
        _left_of_address_space(),
        _left_of_cgroup(cgroup, "memory.max", "memory.current", "inactive_file"),
        _left_of_cgroup(cgroup / "memory", *old),
    ]
    return min(limit for limit in limits if limit is not None)


def _available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _left_of_address_space() -> int | None:
    """What ``ulimit -v`` leaves; None if there is no such limit."""
    import resource

    limit, statm = resource.getrlimit(resource.RLIMIT_AS)[0], Path("/proc/self/statm")
    if limit == resource.RLIM_INFINITY or not statm.exists():
        return None
    return max(0, limit - int(statm.read_text().split()[0]) * resource.getpagesize())


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
