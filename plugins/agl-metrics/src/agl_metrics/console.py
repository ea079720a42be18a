"""Metrics in the log: rates and percentiles of the last minute."""

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from statistics import quantiles

from agl_metrics.registered import Kind, Metric, RegisteredBackend

logger = logging.getLogger("agl.metrics")

_Event = tuple[float, float]
"""When, and how much."""


class ConsoleMetricsBackend(RegisteredBackend):
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
        super().__init__({})
        self._window, self._interval = window_seconds, log_interval_seconds
        self._group_level = group_level
        self._events: dict[tuple[Metric, tuple[str, ...]], deque[_Event]] = {}
        self._lock = threading.Lock()
        self._begun = self._logged = time.monotonic()

    def write(self, metric: Metric, values: tuple[str, ...], amount: float) -> None:
        now = time.monotonic()
        with self._lock:
            events = self._events.setdefault((metric, values), deque())
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
            for (metric, values), events in list(self._events.items()):
                self._forget(events, now)
                if events:
                    key = (metric.name, self._group(metric, values), metric.kind)
                    groups[key] += [amount for _, amount in events]
                else:
                    del self._events[metric, values]
        seconds = now - self._begun
        if self._window is not None:
            seconds = min(seconds, self._window)
        return [
            f"{name}{group} {sum(amounts) / max(seconds, 1e-9):.2f}/s"
            if kind == "counter"
            else f"{name}{group} {' '.join(_duration(each) for each in percentiles(amounts))}"
            for (name, group, kind), amounts in sorted(groups.items())
        ]

    def _group(self, metric: Metric, values: tuple[str, ...]) -> str:
        level = metric.group_level if self._group_level is None else self._group_level
        pairs = list(zip(metric.label_names, values, strict=True))[: max(level or 0, 0)]
        return f"{{{','.join(f'{label}={value}' for label, value in pairs)}}}" if pairs else ""

    def _forget(self, events: deque[_Event], now: float) -> None:
        while self._window is not None and events and now - events[0][0] > self._window:
            events.popleft()


def percentiles(values: Sequence[float]) -> list[float]:
    """The 50th, 95th and 99th percentile, between the two nearest values; not of none."""
    if len(values) == 1:
        return [values[0]] * 3
    hundredths = quantiles(values, n=100, method="inclusive")
    return [hundredths[number - 1] for number in (50, 95, 99)]


def _duration(seconds: float) -> str:
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if abs(seconds) * factor >= 1:
            return f"{seconds * factor:.2f}{unit}"
    return f"{seconds * 1e9:.2f}ns"
