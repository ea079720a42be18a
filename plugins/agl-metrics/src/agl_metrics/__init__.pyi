"""The public names; each is imported when it is first used."""

from .backend import MetricsBackend as MetricsBackend, MultiMetricsBackend as MultiMetricsBackend
from .console import ConsoleMetricsBackend as ConsoleMetricsBackend
from .prometheus import PrometheusMetricsBackend as PrometheusMetricsBackend

__version__: str
