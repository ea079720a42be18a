"""Which metrics there are, and whether what is written fits them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "histogram"]


@dataclass(frozen=True)
class Metric:
    """One registered metric."""

    kind: Kind
    name: str
    label_names: tuple[str, ...]
    group_level: int | None = None

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


class Registered:
    """The metrics of one backend by name."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}

    def add(
        self,
        kind: Kind,
        name: str,
        label_names: Sequence[str] | None,
        group_level: int | None = None,
    ) -> bool:
        """Whether the metric is new.

        Raises:
            ValueError: The name is taken by a metric of another kind or with other labels.
        """
        metric = Metric(kind, name, tuple(label_names or ()), group_level)
        there = self._metrics.setdefault(name, metric)
        if (there.kind, there.label_names) != (kind, metric.label_names):
            raise ValueError(
                f"{kind} {name!r} with the labels {_listed(metric.label_names)}: the name is "
                f"registered already, as a {there.kind} with the labels "
                f"{_listed(there.label_names)}"
            )
        return there is metric

    def get(self, kind: Kind, name: str) -> Metric:
        """The metric of this name.

        Raises:
            ValueError: There is none of this kind.
        """
        metric = self._metrics.get(name)
        if metric is None or metric.kind != kind:
            raise ValueError(f"{kind} {name!r} is not registered; call register_{kind} first")
        return metric

    def increment(
        self, name: str, amount: float, labels: Mapping[str, str] | None
    ) -> tuple[str, ...]:
        """The values of the labels for an increment of a counter.

        Raises:
            ValueError: No such counter, other labels, or a negative amount.
        """
        values = self.get("counter", name).values(labels)
        if not amount >= 0:
            raise ValueError(f"counter {name!r}: a counter only grows, got {amount!r}")
        return values


def _listed(names: object) -> str:
    return ", ".join(names) if isinstance(names, tuple | Mapping) and names else "none"
