"""The contract of a metrics backend, and several of them as one."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from agl.errors import ConfigError
from agl_metrics.watching import RequestWatch, WatchedStore

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from agl.store.base import LightningStore

PATH = "/v1/prometheus"
"""Where a server that has a Prometheus backend shows its metrics."""


class MetricsBackend(ABC):
    """Takes counters and histograms: each is registered once, and then written to by its name.

    A store server (``LightningStoreServer(tracker=...)``) and a gateway (``LLMProxy(tracker=...)``)
    write to one; so may anybody else.
    """

    def has_prometheus(self) -> bool:
        """Whether ``exposition`` has what Prometheus reads."""
        return False

    @abstractmethod
    def register_counter(
        self,
        name: str,
        label_names: Sequence[str] | None = None,
        group_level: int | None = None,
    ) -> None:
        """Make a counter. The same one may be registered again.

        Args:
            name: As ``agl.store.total``.
            label_names: Every increment gives a value for each.
            group_level: How many labels, from the first, the console tells apart, where its own
                ``group_level`` is not set.

        Raises:
            ValueError: The name is registered with other labels, or as a histogram.
        """

    @abstractmethod
    def register_histogram(
        self,
        name: str,
        label_names: Sequence[str] | None = None,
        buckets: Sequence[float] | None = None,
        group_level: int | None = None,
    ) -> None:
        """Make a histogram. The same one may be registered again.

        Args:
            name: As ``agl.store.latency``.
            label_names: Every observation gives a value for each.
            buckets: Upper bounds, ascending; None for those of the backend.
            group_level: See ``register_counter``.

        Raises:
            ValueError: The name is registered with other labels, or as a counter.
        """

    @abstractmethod
    async def inc_counter(
        self, name: str, amount: float = 1.0, labels: Mapping[str, str] | None = None
    ) -> None:
        """Add to a counter.

        Raises:
            ValueError: No such counter, other labels than those registered, or less than 0.
        """

    @abstractmethod
    async def observe_histogram(
        self, name: str, value: float, labels: Mapping[str, str] | None = None
    ) -> None:
        """Add a value to a histogram.

        Raises:
            ValueError: No such histogram, or other labels than those registered.
        """

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
        backends: At least one.

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

    def register_counter(
        self,
        name: str,
        label_names: Sequence[str] | None = None,
        group_level: int | None = None,
    ) -> None:
        for backend in self._backends:
            backend.register_counter(name, label_names, group_level)

    def register_histogram(
        self,
        name: str,
        label_names: Sequence[str] | None = None,
        buckets: Sequence[float] | None = None,
        group_level: int | None = None,
    ) -> None:
        for backend in self._backends:
            backend.register_histogram(name, label_names, buckets, group_level)

    async def inc_counter(
        self, name: str, amount: float = 1.0, labels: Mapping[str, str] | None = None
    ) -> None:
        for backend in self._backends:
            await backend.inc_counter(name, amount, labels)

    async def observe_histogram(
        self, name: str, value: float, labels: Mapping[str, str] | None = None
    ) -> None:
        for backend in self._backends:
            await backend.observe_histogram(name, value, labels)
