"""Which tasks come next."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from numbers import Integral
from random import Random
from typing import Any

from agl.errors import AlgorithmError, ConfigError
from agl.plugins.build import ComponentPlan, plan_component
from agl.plugins.registry import GROUPS
from agl.types import Dataset
from agl.utils.json_values import to_json_text


def digest(tasks: Sequence[Any]) -> str:
    """Tells whether tasks are those of an earlier process, in the same order.

    The order of keys within a task tells nothing.
    """
    text = json.dumps(json.loads(to_json_text(tasks)), sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class TaskOrder(ABC):
    """In which order tasks come; a component of the group ``agl.task_orders``."""

    @abstractmethod
    def order(self, tasks: Sequence[Any], number: int, random: Random) -> Sequence[int]:
        """Positions of the tasks of one pass; some may be left out, or come twice.

        A run that goes on asks again for all passes from the first one on, and expects what it got.

        Args:
            tasks: All of them.
            number: Of the pass, from 0.
            random: To draw from; seeded by the algorithm's ``seed``, and used by all passes.
        """


class Shuffled(TaskOrder):
    """Every task once before any comes again, each time in another order."""

    def order(self, tasks: Sequence[Any], number: int, random: Random) -> Sequence[int]:
        positions = list(range(len(tasks)))
        random.shuffle(positions)
        return positions


class AsGiven(TaskOrder):
    """As they stand in the dataset, again and again."""

    def order(self, tasks: Sequence[Any], number: int, random: Random) -> Sequence[int]:
        return range(len(tasks))


def plan_order(order: str | Mapping[str, Any], where: str) -> ComponentPlan[TaskOrder]:
    """Find an order of tasks by its name, or ``type`` and options.

    Raises:
        ConfigError: Its options are wrong.
        PluginError: There is no such order, or it does not load.
    """
    group = GROUPS["task_order"]
    return plan_component(order, group=group, expected_type=TaskOrder, where=where)


class Tasks:
    """All tasks, in the order in which they are taken, without an end."""

    def __init__(
        self, dataset: Dataset[Any], seed: int, order: str | Mapping[str, Any] = "shuffled"
    ) -> None:
        self.dataset: Any = dataset
        self._order = plan_order(order, "task_order").build()
        self._random = Random(seed)
        self._passes, self._positions = 0, list[int]()

    def first_pass(self) -> int:
        """How many tasks it has; asked before more are taken. It may raise what ``take`` does."""
        self.take(0, 1)
        return len(self._positions)

    def take(self, start: int, count: int) -> list[Any]:
        """Those from place ``start`` on.

        Raises:
            AlgorithmError: The order failed.
            ConfigError: The order has no position, or one where there is no task.
        """
        while len(self._positions) < start + count:
            name, last = type(self._order).__name__, len(self.dataset) - 1
            try:
                positions = list(self._order.order(self.dataset, self._passes, self._random))
            except Exception as error:
                raise AlgorithmError(
                    f"task_order: {name} failed for pass {self._passes}: "
                    f"{type(error).__name__}: {error}"
                ) from error
            is_place = (isinstance(one, Integral) and 0 <= one <= last for one in positions)
            if not positions or not all(is_place):
                raise ConfigError(
                    f"task_order: {name} must give positions from 0 to {last} for pass "
                    f"{self._passes}, at least one; got {positions!r:.200}"
                )
            self._passes += 1
            self._positions += positions
        return [self.dataset[n] for n in self._positions[start : start + count]]
