"""How much memory this machine has left, for whoever estimates what a training will need."""

import os
from pathlib import Path


def free_memory() -> int:
    """Bytes that processes of this machine, or of this container, can still take."""
    limits = [_available(), _left_of_group()]
    return min(limit for limit in limits if limit is not None)


def _available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _left_of_group() -> int | None:
    """What a container's limit leaves; None where there is none."""
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(0, int(limit) - used)
