"""Algorithms that only run the agent."""

from typing import Literal

from agentlightning.algorithm.base import Algorithm
from agl import Baseline as _Baseline, FastAlgorithm as _FastAlgorithm


class FastAlgorithm(Algorithm, _FastAlgorithm):
    """agl's, for which ``Trainer.dev`` is. Every fast algorithm of agl is one, too."""

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return _FastAlgorithm in other.__mro__ if cls is FastAlgorithm else NotImplemented


class Baseline(_Baseline):
    """agl's, with 0.3's parameters.

    Args:
        n_epochs: How often each task runs.
        train_split: Between 0 and 1. It has no effect, as it had none in 0.3: the train tasks run
            in mode ``train`` and the validation tasks in mode ``val``.
        polling_interval: It has no effect: the store wakes who waits.
        max_queue_length: At most so many rollouts wait in the queue at once.
        span_verbosity: It has no effect: the log has the names of the attributes.
    """

    def __init__(
        self,
        *,
        n_epochs: int = 1,
        train_split: float = 0.5,
        polling_interval: float = 5.0,
        max_queue_length: int = 4,
        span_verbosity: Literal["keys", "key_values", "none"] = "keys",
    ) -> None:
        if not 0 < train_split < 1:
            raise ValueError(f"Baseline: train_split={train_split}: expected between 0 and 1")
        super().__init__(n_epochs=n_epochs, max_queue_length=max_queue_length)
