"""What of a machine and its environment matters to a run."""

import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psutil

from agl.cli.plugins import diagnose
from agl.runner.heartbeat import gpu_stats

LIBRARIES = ("torch", "transformers", "trl", "peft", "vllm", "verl", "ray", "litellm", "openai")
"""What trains, serves or is called, and decides by its version what works."""


def machine() -> dict[str, Any]:
    """This machine as runs find it; JSON values."""
    rows = diagnose(check=True)
    return {
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "memory": f"{psutil.virtual_memory().available / 2**30:.1f} GiB free",
        "disk": f"{shutil.disk_usage('.').free / 2**30:.1f} GiB free in {os.getcwd()}",
        "gpus": _gpus(),
        "packages": {row.distribution: row.version for row in rows},
        "libraries": {name: found for name in LIBRARIES if (found := _version(name)) is not None},
        "without extra": [row.name for row in rows if row.state == "needs extra"],
        "problems": [
            f"{row.kind} {row.name} ({row.distribution}): {row.state}: {row.cause}"
            for row in rows
            if row.state in ("broken", "duplicate", "unknown group")
        ],
    }


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _gpus() -> list[str]:
    try:
        found = gpu_stats()
    except (OSError, subprocess.SubprocessError):  # no nvidia-smi, or no driver under it
        return []
    return [
        f"{one['name']}, {one['memory.used']} of {one['memory.total']} MiB used" for one in found
    ]
