"""Metrics for Prometheus, kept by its own client library."""

import os
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import prometheus_client
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram

from agl_metrics.backend import MetricsBackend
from agl_metrics.registered import Registered
from agl_metrics.shared_folder import FOLDER, registry_of_all


class _Collectors(Registered):
    """The metrics of ours in one registry: a registry takes each name once, backends share it."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.by_name: dict[str, Any] = {}
        self.owners: dict[str, str] = {}
        """Name at Prometheus -> our name of it."""


_KNOWN: WeakKeyDictionary[CollectorRegistry, _Collectors] = WeakKeyDictionary()


class PrometheusMetricsBackend(MetricsBackend):
    """Hands metrics to ``prometheus_client``; ``agl.store.total`` is ``agl_store_total`` there.

    All backends of a process with the same registry write to the same metrics. Where
    ``PROMETHEUS_MULTIPROC_DIR`` was set before the process began, ``exposition`` shows the metrics
    of all processes that have it; the folder should be empty when the first of them starts.

    Args:
        registry: Where the metrics are registered; None for the library's own, which
            ``prometheus_client.start_http_server`` shows.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._registry = REGISTRY if registry is None else registry
        self._collectors = _KNOWN.setdefault(self._registry, _Collectors())

    def has_prometheus(self) -> bool:
        return True

    def exposition(self) -> tuple[bytes, str]:
        registry = self._registry
        if folder := os.environ.get(FOLDER):
            registry = registry_of_all(folder)
        return prometheus_client.generate_latest(registry), prometheus_client.CONTENT_TYPE_LATEST

    def register_counter(
        self,
        name: str,
        label_names: Sequence[str] | None = None,
        group_level: int | None = None,
    ) -> None:
        with self._collectors.lock:
            their_name = self._free_name(name)
            if self._collectors.add("counter", name, label_names):
                self._collectors.by_name[name] = Counter(
                    their_name, f"Counter {name}", label_names or (), registry=self._registry
                )

    def register_histogram(
        self,
        name: str,
        label_names: Sequence[str] | None = None,
        buckets: Sequence[float] | None = None,
        group_level: int | None = None,
    ) -> None:
        with self._collectors.lock:
            their_name = self._free_name(name)
            if self._collectors.add("histogram", name, label_names):
                self._collectors.by_name[name] = Histogram(
                    their_name,
                    f"Histogram {name}",
                    label_names or (),
                    registry=self._registry,
                    buckets=Histogram.DEFAULT_BUCKETS if buckets is None else buckets,
                )

    async def inc_counter(
        self, name: str, amount: float = 1.0, labels: Mapping[str, str] | None = None
    ) -> None:
        values = self._collectors.increment(name, amount, labels)
        self._of(name, values).inc(amount)

    async def observe_histogram(
        self, name: str, value: float, labels: Mapping[str, str] | None = None
    ) -> None:
        values = self._collectors.get("histogram", name).values(labels)
        self._of(name, values).observe(value)

    def _of(self, name: str, values: tuple[str, ...]) -> Any:
        collector = self._collectors.by_name[name]
        return collector.labels(*values) if values else collector

    def _free_name(self, name: str) -> str:
        theirs = re.sub(r"[^a-zA-Z0-9_:]", "_", name)
        owner = self._collectors.owners.setdefault(theirs, name)
        if owner != name:
            raise ValueError(f"{name!r} is {theirs!r} at Prometheus, as {owner!r} is; rename one")
        return theirs
