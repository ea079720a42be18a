"""What the machine does."""

from typing import Any


def system_snapshot(include_gpu: bool = False) -> dict[str, Any]:
    """Load of processors, memory, disk and, where asked for, GPUs."""
    import os
    import platform
    import socket
    import time

    import psutil

    from agl.runner.heartbeat import gpu_stats

    memory, disk, network = (
        psutil.virtual_memory(),
        psutil.disk_usage("/"),
        psutil.net_io_counters(),
    )
    snapshot: dict[str, Any] = {
        "timestamp": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "host": socket.gethostname(),
        "os": platform.platform(),
        "cpu_name": platform.processor(),
        "cpu_cores": psutil.cpu_count(logical=False),
        "cpu_threads": os.cpu_count(),
        "cpu_usage_pct": psutil.cpu_percent(),
        "mem_used_gb": round(memory.used / 2**30, 2),
        "mem_total_gb": round(memory.total / 2**30, 2),
        "mem_pct": memory.percent,
        "disk_used_gb": round(disk.used / 2**30, 2),
        "disk_total_gb": round(disk.total / 2**30, 2),
        "disk_pct": disk.percent,
        "bytes_sent_mb": round(network.bytes_sent / 2**20, 2),
        "bytes_recv_mb": round(network.bytes_recv / 2**20, 2),
    }
    if include_gpu:
        snapshot["gpus"] = gpu_stats()
    return snapshot
