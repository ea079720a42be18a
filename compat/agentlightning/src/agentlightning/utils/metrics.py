"""Metrics; needs agl-metrics."""

import os
import tempfile
from typing import TYPE_CHECKING, Any

from agentlightning._names import refuse, rest
from agl.errors import install_line

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from agl_metrics import *

BACKENDS = (
    *("ConsoleMetricsBackend", "MetricsBackend"),
    *("MultiMetricsBackend", "PrometheusMetricsBackend"),
)
FOLDER = "PROMETHEUS_MULTIPROC_DIR"

_rest = rest(__name__)


def setup_multiprocess_prometheus() -> None:
    """Have the processes of this program share their metrics; before prometheus_client is used."""
    if FOLDER not in os.environ:
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="agl-prometheus-")


def get_prometheus_registry() -> "CollectorRegistry":
    """Of this process, or of all processes that share their metrics."""
    import prometheus_client

    if FOLDER not in os.environ:
        return prometheus_client.REGISTRY
    from agl_metrics.shared_folder import registry_of_all

    return registry_of_all(os.environ[FOLDER])


def shutdown_metrics(server: Any = None, worker: Any = None, *args: Any, **kwargs: Any) -> None:
    """Say that a process (``worker.pid``, or this one) shares its metrics no more."""
    if FOLDER in os.environ:
        from prometheus_client.multiprocess import mark_process_dead

        mark_process_dead(getattr(worker, "pid", os.getpid()))


def __getattr__(name: str) -> Any:
    if name not in BACKENDS:
        return _rest(name)
    try:
        import agl_metrics
    except ModuleNotFoundError:
        refuse(__name__, name, f"it is in agl-metrics. Run: {install_line('agl-metrics')}")
    return getattr(agl_metrics, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *BACKENDS})
