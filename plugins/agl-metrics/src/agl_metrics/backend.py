"""A metrics backend as servers use it, and several of them as one."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agl.errors import ConfigError
from agl_metrics.contract import Metrics
from agl_metrics.watching import RequestWatch, WatchedStore

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from agl.store.base import LightningStore

PATH = "/v1/prometheus"
"""Where a server that has a Prometheus backend shows its metrics."""


class MetricsBackend(Metrics):
    """Takes counters and histograms, and says what of them is shown.

    A store server (``LightningStoreServer(tracker=...)``) and a gateway (``LLMProxy(tracker=...)``)
    write to one; so may anybody else.
    """

    def has_prometheus(self) -> bool:
        """Whether ``exposition`` has what Prometheus reads."""
        return False

    def exposition(self) -> tuple[bytes, str]:
        """What Prometheus reads, and its content type.

        Raises:
            ConfigError: This backend has none.
        """
        raise ConfigError(
            f"{type(self).__name__} keeps nothing for Prometheus; use PrometheusMetricsBackend"
        )

    # --- what a server asks of its backend

    def watch_store(self, store: "LightningStore") -> "LightningStore":
        """The store, every operation of which is counted."""
        return WatchedStore(store, self)

    def watch_requests(self) -> RequestWatch:
        """What a server tells of each of its requests."""
        return RequestWatch(self)

    def routes(self) -> "list[BaseRoute]":
        """What a server shows of the metrics: for Prometheus, at ``/v1/prometheus``."""
        if not self.has_prometheus():
            return []
        from starlette.requests import Request
        from starlette.responses import Response
        from starlette.routing import Route

        def show(request: Request) -> Response:
            body, content_type = self.exposition()
            return Response(body, headers={"content-type": content_type})

        return [Route(path, show) for path in (PATH, f"{PATH}/")]


class MultiMetricsBackend(MetricsBackend):
    """Hands everything to several backends.

    Args:
        backends: Backends that get every metric; at least one.

    Raises:
        ValueError: There is none.
    """

    def __init__(self, backends: Sequence[MetricsBackend]) -> None:
        if not backends:
            raise ValueError("MultiMetricsBackend: give at least one backend")
        self._backends = tuple(backends)

    def has_prometheus(self) -> bool:
        return any(backend.has_prometheus() for backend in self._backends)

    def exposition(self) -> tuple[bytes, str]:
        for backend in self._backends:
            if backend.has_prometheus():
                return backend.exposition()
        return super().exposition()

    def register_counter(self, *args: Any, **kwargs: Any) -> None:
        for backend in self._backends:
            backend.register_counter(*args, **kwargs)

    def register_histogram(self, *args: Any, **kwargs: Any) -> None:
        for backend in self._backends:
            backend.register_histogram(*args, **kwargs)

    async def inc_counter(self, *args: Any, **kwargs: Any) -> None:
        for backend in self._backends:
            await backend.inc_counter(*args, **kwargs)

    async def observe_histogram(self, *args: Any, **kwargs: Any) -> None:
        for backend in self._backends:
            await backend.observe_histogram(*args, **kwargs)
