"""Metrics in the log: rates and percentiles of the last minute."""

import logging
import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence

from agl_metrics.backend import MetricsBackend
from agl_metrics.registered import Kind, Registered

logger = logging.getLogger("agl.metrics")

_Event = tuple[float, float]
"""When, and how much."""


class ConsoleMetricsBackend(MetricsBackend):
    """Logs, now and then, the rate of each counter and the percentiles of each histogram.

    A line is ``agl.store.total{method=turn} 12.50/s`` or, with the 50th, 95th and 99th percentile,
    ``agl.store.latency{method=turn} 1.20ms 3.40ms 9.80ms``. Durations are in seconds.

    Args:
        window_seconds: What rates and percentiles are about; None for all since the beginning,
            which then stays in memory.
        log_interval_seconds: The least time between two logs. The first event after it logs all.
        group_level: How many labels, from the first, are told apart; None leaves it to each metric,
            which tells none apart unless it was registered with a level of its own.
    """

    def __init__(
        self,
        window_seconds: float | None = 60.0,
        log_interval_seconds: float = 10.0,
        group_level: int | None = None,
    ) -> None:
        self._window, self._interval = window_seconds, log_interval_seconds
        self._group_level = group_level
        self._registered = Registered()
        self._events: dict[tuple[Kind, str, tuple[str, ...]], deque[_Event]] = {}
        self._lock = threading.Lock()
        self._begun = self._logged = time.monotonic()

    def register_counter(
        self,
        name: str,
        label_names: Sequence[str] | None = None,
        group_level: int | None = None,
    ) -> None:
        self._registered.add("counter", name, label_names, group_level)

    def register_histogram(
        self,
        name: str,
        label_names: Sequence[str] | None = None,
        buckets: Sequence[float] | None = None,
        group_level: int | None = None,
    ) -> None:
        self._registered.add("histogram", name, label_names, group_level)

    async def inc_counter(
        self, name: str, amount: float = 1.0, labels: Mapping[str, str] | None = None
    ) -> None:
        self._add("counter", name, self._registered.increment(name, amount, labels), amount)

    async def observe_histogram(
        self, name: str, value: float, labels: Mapping[str, str] | None = None
    ) -> None:
        values = self._registered.get("histogram", name).values(labels)
        self._add("histogram", name, values, value)

    def _add(self, kind: Kind, name: str, values: tuple[str, ...], amount: float) -> None:
        now = time.monotonic()
        with self._lock:
            events = self._events.setdefault((kind, name, values), deque())
            events.append((now, amount))
            self._forget(events, now)
            is_due = now - self._logged >= self._interval
            if is_due:
                self._logged = now
        if is_due:
            for line in self.lines():
                logger.info("%s", line)

    def lines(self) -> list[str]:
        """What is logged: one line per metric and group of labels, sorted."""
        now = time.monotonic()
        groups: defaultdict[tuple[str, str, Kind], list[float]] = defaultdict(list)
        with self._lock:
            for (kind, name, values), events in list(self._events.items()):
                self._forget(events, now)
                if events:
                    key = (name, self._group(kind, name, values), kind)
                    groups[key] += [amount for _, amount in events]
                else:
                    del self._events[kind, name, values]
        seconds = now - self._begun
        if self._window is not None:
            seconds = min(seconds, self._window)
        return [
            f"{name}{group} {sum(amounts) / max(seconds, 1e-9):.2f}/s"
            if kind == "counter"
            else f"{name}{group} {' '.join(_duration(each) for each in percentiles(amounts))}"
            for (name, group, kind), amounts in sorted(groups.items())
        ]

    def _group(self, kind: Kind, name: str, values: tuple[str, ...]) -> str:
        metric = self._registered.get(kind, name)
        level = metric.group_level if self._group_level is None else self._group_level
        pairs = list(zip(metric.label_names, values, strict=True))[: max(level or 0, 0)]
        return f"{{{','.join(f'{label}={value}' for label, value in pairs)}}}" if pairs else ""

    def _forget(self, events: deque[_Event], now: float) -> None:
        while self._window is not None and events and now - events[0][0] > self._window:
            events.popleft()


def percentiles(values: Sequence[float]) -> list[float]:
    """The 50th, 95th and 99th percentile, between the two nearest values; not of none."""
    ordered = sorted(values)
    found: list[float] = []
    for part in (0.5, 0.95, 0.99):
        place = part * (len(ordered) - 1)
        low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
        found.append(low + (high - low) * (place - math.floor(place)))
    return found


def _duration(seconds: float) -> str:
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if abs(seconds) * factor >= 1:
            return f"{seconds * factor:.2f}{unit}"
    return f"{seconds * 1e9:.2f}ns"
