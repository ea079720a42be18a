"""The life cycle that tracers and runners share, and what runners are called."""

import os
import socket
from typing import Any


def worker_name(worker_id: int, pid: int | None = None) -> str:
    """The id of a runner in the store, unique across hosts and processes (None: this one)."""
    return f"{socket.gethostname()}-{os.getpid() if pid is None else pid}-{worker_id}"


class ParallelWorkerBase:
    """``init`` in the parent, ``init_worker`` and ``run`` in each worker, then teardowns."""

    worker_id: int | None = None

    def init(self, *args: Any, **kwargs: Any) -> None:
        """Prepare what all workers share; called before they start."""

    def init_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        """Prepare one worker, in its own process or thread."""
        self.worker_id = worker_id

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Do the work; most subclasses have a method of a better name."""

    def teardown_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        """Undo ``init_worker``."""

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        """Undo ``init``."""
