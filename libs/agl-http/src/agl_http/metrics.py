"""Counts and durations of requests, as Prometheus reads them."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
"""Upper bounds of durations in seconds; the last are those of held requests."""


class RequestMetrics:
    """Counters of one server, used from its event loop alone."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str, int], int] = {}
        self._buckets: dict[tuple[str, str], list[int]] = {}
        self._seconds: dict[tuple[str, str], float] = {}

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered, in seconds from its first byte to the answer's last.

        ``route`` is its path with parameters unfilled, so that there are few.
        """
        key, where = (method, route, status), (method, route)
        self._requests[key] = self._requests.get(key, 0) + 1
        if where not in self._buckets:
            self._buckets[where] = [0] * (len(BUCKETS) + 1)
            self._seconds[where] = 0.0
        self._buckets[where][bisect_left(BUCKETS, seconds)] += 1
        self._seconds[where] += seconds

    def text(self, statistics: Mapping[str, Any] | None = None) -> str:
        """Everything, in the text format 0.0.4; with the store's counters where there is one."""
        store = () if statistics is None else _store_lines(statistics)
        return "\n".join([*self._request_lines(), *store, ""])

    def _request_lines(self) -> Iterator[str]:
        name = "agl_http_requests_total"
        yield from _head(name, "counter", "Requests answered.")
        for (method, route, status), count in sorted(self._requests.items()):
            yield f'{name}{{method="{method}",route="{route}",status="{status}"}} {count}'
        name = "agl_http_request_duration_seconds"
        yield from _head(name, "histogram", "Time from a request to the end of its answer.")
        for (method, route), counts in sorted(self._buckets.items()):
            labels = f'method="{method}",route="{route}"'
            total = 0
            for bound, count in zip([*map(str, BUCKETS), "+Inf"], counts, strict=True):
                total += count
                yield f'{name}_bucket{{{labels},le="{bound}"}} {total}'
            yield f"{name}_sum{{{labels}}} {self._seconds[method, route]!r}"
            yield f"{name}_count{{{labels}}} {total}"


def _store_lines(statistics: Mapping[str, Any]) -> Iterator[str]:
    name = "agl_store_records"
    yield from _head(name, "gauge", "Records in the store.")
    for key in ("rollouts", "attempts", "spans", "resources", "workers"):
        if f"total_{key}" in statistics:
            yield f'{name}{{kind="{key}"}} {statistics[f"total_{key}"]}'
    yield from _head("agl_store_uptime_seconds", "gauge", "Time since the store was opened.")
    yield f"agl_store_uptime_seconds {statistics.get('uptime', 0.0)!r}"


def _head(name: str, kind: str, description: str) -> Iterable[str]:
    return f"# HELP {name} {description}", f"# TYPE {name} {kind}"
