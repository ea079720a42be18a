"""Metrics for Prometheus, kept by its own client library."""

import os
import re
import threading
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import prometheus_client
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram

from agl_metrics.registered import Metric, RegisteredBackend
from agl_metrics.shared_folder import FOLDER, registry_of_all


@dataclass(frozen=True)
class _Collectors:
    """The metrics of ours in one registry: a registry takes each name once, backends share it."""

    metrics: dict[str, Metric] = field(default_factory=dict[str, Metric])
    by_name: dict[str, Any] = field(default_factory=dict[str, Any])
    owners: dict[str, str] = field(default_factory=dict[str, str])
    """Name at Prometheus -> our name of it."""
    lock: threading.Lock = field(default_factory=threading.Lock)


_KNOWN: WeakKeyDictionary[CollectorRegistry, _Collectors] = WeakKeyDictionary()


class PrometheusMetricsBackend(RegisteredBackend):
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
        super().__init__(self._collectors.metrics)

    def has_prometheus(self) -> bool:
        return True

    def exposition(self) -> tuple[bytes, str]:
        registry = self._registry
        if folder := os.environ.get(FOLDER):
            registry = registry_of_all(folder)
        return prometheus_client.generate_latest(registry), prometheus_client.CONTENT_TYPE_LATEST

    def register(self, metric: Metric) -> bool:
        name, labels = metric.name, metric.label_names
        with self._collectors.lock:
            their_name = self._free_name(name)
            is_new = super().register(metric)
            if is_new and metric.kind == "counter":
                self._collectors.by_name[name] = Counter(
                    their_name, f"Counter {name}", labels, registry=self._registry
                )
            elif is_new:
                self._collectors.by_name[name] = Histogram(
                    their_name,
                    f"Histogram {name}",
                    labels,
                    registry=self._registry,
                    buckets=metric.buckets or Histogram.DEFAULT_BUCKETS,
                )
        return is_new

    def write(self, metric: Metric, values: tuple[str, ...], amount: float) -> None:
        collector = self._collectors.by_name[metric.name]
        collector = collector.labels(*values) if values else collector
        (collector.inc if metric.kind == "counter" else collector.observe)(amount)

    def _free_name(self, name: str) -> str:
        theirs = re.sub(r"[^a-zA-Z0-9_:]", "_", name)
        owner = self._collectors.owners.setdefault(theirs, name)
        if owner != name:
            raise ValueError(f"{name!r} is {theirs!r} at Prometheus, as {owner!r} is; rename one")
        return theirs
