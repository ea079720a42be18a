"""Algorithm and runners in threads of one process."""

from typing import Literal

from agentlightning._names import rest
from agl import SharedMemoryExecutionStrategy as _SharedMemoryExecutionStrategy


class SharedMemoryExecutionStrategy(_SharedMemoryExecutionStrategy):
    """agl's, with 0.3's parameters.

    ``join_timeout`` has no effect, as threads have 15 s to end; nor has ``poll_interval``, as
    nobody polls.
    """

    def __init__(
        self,
        n_runners: int = 1,
        main_thread: Literal["algorithm", "runner"] = "runner",
        join_timeout: float = 15.0,
        graceful_delay: float = 5.0,
        poll_interval: float = 0.05,
        managed_store: bool | None = None,
    ) -> None:
        super().__init__(n_runners, main_thread, graceful_delay, managed_store)


__getattr__ = rest(__name__)
