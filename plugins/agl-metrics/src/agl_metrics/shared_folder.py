"""The folder through which the processes of a program share their metrics."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable of prometheus_client, read when that is imported."""


def registry_of_all(folder: str) -> "CollectorRegistry":
    """The metrics of all processes that keep them in this folder."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=folder)
    return registry
