"""Which metrics there are, and whether what is written fits them."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agl_metrics.backend import MetricsBackend

Kind = Literal["counter", "histogram"]


@dataclass(frozen=True)
class Metric:
    """One registered metric."""

    kind: Kind
    name: str
    label_names: tuple[str, ...]
    group_level: int | None = None
    buckets: tuple[float, ...] | None = None

    def values(self, labels: Mapping[str, str] | None) -> tuple[str, ...]:
        """The values of the labels, in the order in which they were registered.

        Raises:
            ValueError: One is missing, or there is one too many.
        """
        given = labels or {}
        if given.keys() != set(self.label_names):
            raise ValueError(
                f"{self.kind} {self.name!r}: expected the labels {_listed(self.label_names)}; "
                f"got {_listed(given)}"
            )
        return tuple(str(given[name]) for name in self.label_names)


class RegisteredBackend(MetricsBackend):
    """A backend that knows its metrics, and refuses what does not fit them.

    Args:
        metrics: By their names; several backends may share them.
    """

    def __init__(self, metrics: dict[str, Metric]) -> None:
        self._metrics = metrics

    @abstractmethod
    def write(self, metric: Metric, values: tuple[str, ...], amount: float) -> None:
        """Take an increment of a counter, or a value of a histogram, with its labels' values."""

    def register(self, metric: Metric) -> bool:
        """Whether the metric is new.

        Raises:
            ValueError: The name is taken by a metric of another kind or with other labels.
        """
        there = self._metrics.setdefault(metric.name, metric)
        if (there.kind, there.label_names) != (metric.kind, metric.label_names):
            raise ValueError(
                f"{metric.kind} {metric.name!r} with the labels {_listed(metric.label_names)}: the "
                f"name is registered already, as a {there.kind} with the labels "
                f"{_listed(there.label_names)}"
            )
        return there is metric

    def register_counter(
        self, name: str, label_names: Sequence[str] | None = None, group_level: int | None = None
    ) -> None:
        self.register(Metric("counter", name, tuple(label_names or ()), group_level))

    def register_histogram(
        self,
        name: str,
        label_names: Sequence[str] | None = None,
        buckets: Sequence[float] | None = None,
        group_level: int | None = None,
    ) -> None:
        bounds = None if buckets is None else tuple(buckets)
        self.register(Metric("histogram", name, tuple(label_names or ()), group_level, bounds))

    async def inc_counter(
        self, name: str, amount: float = 1.0, labels: Mapping[str, str] | None = None
    ) -> None:
        metric = self._known("counter", name)
        values = metric.values(labels)
        if not amount >= 0:
            raise ValueError(f"counter {name!r}: a counter only grows, got {amount!r}")
        self.write(metric, values, amount)

    async def observe_histogram(
        self, name: str, value: float, labels: Mapping[str, str] | None = None
    ) -> None:
        metric = self._known("histogram", name)
        self.write(metric, metric.values(labels), value)

    def _known(self, kind: Kind, name: str) -> Metric:
        metric = self._metrics.get(name)
        if metric is None or metric.kind != kind:
            raise ValueError(f"{kind} {name!r} is not registered; call register_{kind} first")
        return metric


def _listed(names: object) -> str:
    return ", ".join(names) if isinstance(names, tuple | Mapping) and names else "none"
