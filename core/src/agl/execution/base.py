"""The contract of an execution strategy, and its stop signals."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.routing import BaseRoute

    from agl.store.base import LightningStore


class ExecutionEvent(Protocol):
    """A flag that says "stop"."""

    def set(self) -> None: ...
    def clear(self) -> None: ...
    def is_set(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool:
        """Block until it is set or ``timeout`` seconds have passed; whether it is set."""
        ...


class ThreadingEvent(threading.Event):
    """A flag within one process."""


AT_WORK: ContextVar[Callable[[], None] | None] = ContextVar("agl_at_work", default=None)
"""A runner calls this once the store has answered a claim: it has begun to work, and what it dies
of later is no failure to start."""


AlgorithmBundle = Callable[["LightningStore", ExecutionEvent], Coroutine[Any, Any, None]]
"""The algorithm with all it needs, ready to run."""
RunnerBundle = Callable[["LightningStore", int, ExecutionEvent], Coroutine[Any, Any, None]]
"""A runner with agent, tracer and hooks, ready to run under a number; started several times."""


class ExecutionStrategy(ABC):
    """Decides where the bundles run, how many runners there are, and how everything ends."""

    n_runners: int = 1
    replaces_runners: bool = False
    """Whether a runner that ends with ``RunnerStuckError`` gets a successor."""
    extra_routes: "Sequence[BaseRoute]" = ()
    """Of plugins, beside the store's, where it serves one; the trainer sets them."""
    ask_to_stop: Callable[[], bool] = staticmethod(lambda: False)
    """Ctrl+C and SIGTERM call this first. If it returns False, the run ends at once; it returns
    False from the second signal on. The trainer sets it."""

    @property
    def runs_algorithm(self) -> bool:
        """Whether the algorithm runs here; False on a machine that has runners only."""
        return True

    def serves(self, store: "LightningStore") -> bool:
        """Whether this process would serve the store, with ``extra_routes``, or only use it."""
        return False

    def prepare(self) -> None:
        """Check that it could run now (a free port, say), before anything is started.

        Raises:
            ConfigError: It could not.
        """

    @abstractmethod
    def execute(
        self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: "LightningStore"
    ) -> None:
        """Run to the end: returns when the algorithm has finished and the runners have stopped.

        When all runners have ended in order (``max_rollouts``), an algorithm that works goes on to
        its own end; a wait for rollouts that nobody will run raises ``RunnerCrashError`` in it.

        Raises:
            AlgorithmError: The algorithm raised; the runners were stopped first.
            RunnerCrashError: Runners died for good, and the algorithm was not done.
            KeyboardInterrupt: Ctrl+C; everything was stopped first.
        """
