"""What whoever measures needs of a backend: counters and histograms by name."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence


class Metrics(ABC):
    """Takes counters and histograms: each is registered once, and then written to by its name."""

    @abstractmethod
    def register_counter(
        self, name: str, label_names: Sequence[str] | None = None, group_level: int | None = None
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
