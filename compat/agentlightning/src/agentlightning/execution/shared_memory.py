"""Algorithm and runners in threads of one process."""

from typing import Literal

from agentlightning.store.threading import guarded
from agl import LightningStore, SharedMemoryExecutionStrategy as _SharedMemoryExecutionStrategy
from agl.env import LightningEnvVar, resolve_bool_env_var
from agl.execution.base import AlgorithmBundle, RunnerBundle


class SharedMemoryExecutionStrategy(_SharedMemoryExecutionStrategy):
    """agl's, with 0.3's parameters.

    A store that does not say that it is thread-safe gets one call at a time, unless
    ``managed_store`` is False. ``join_timeout`` has no effect, as threads have 15 s to end; nor has
    ``poll_interval``, as nobody polls.
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
        super().__init__(n_runners, main_thread, graceful_delay)
        self.managed_store = resolve_bool_env_var(
            LightningEnvVar.AGL_MANAGED_STORE, managed_store, True
        )

    def execute(
        self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore
    ) -> None:
        """As agl's; a managed store that is not thread-safe gets one call at a time."""
        super().execute(algorithm, runner, guarded(store) if self.managed_store else store)
