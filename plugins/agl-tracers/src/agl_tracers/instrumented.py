"""``InstrumentedTracer``: the core's tracer, with instrumentations switched on while it is used."""

from collections.abc import Sequence
from typing import Any

import agl
from agl.errors import ConfigError
from agl_tracers.instrumentation import Instrumentation, acquire, release


class InstrumentedTracer(agl.OtelTracer):
    """An ``OtelTracer`` that instruments libraries from ``init_worker`` to ``teardown_worker``.

    Args:
        available: What can be instrumented here.
        libraries: Names of those that shall be; None is all.

    Raises:
        ConfigError: One of ``libraries`` is not available.
    """

    def __init__(
        self, available: Sequence[Instrumentation], libraries: Sequence[str] | None
    ) -> None:
        super().__init__()
        names = sorted({each.library for each in available})
        unknown = sorted(set(libraries or ()) - set(names))
        if unknown:
            raise ConfigError(
                f"{type(self).__name__} has no instrumentation of {', '.join(unknown)}; "
                f"installed are those of {', '.join(names) or 'nothing'}"
            )
        self._instrumentations = [
            each for each in available if libraries is None or each.library in libraries
        ]

    def init_worker(
        self, worker_id: int, store: agl.LightningStore | None = None, *args: Any, **kwargs: Any
    ) -> None:
        """Prepare for one runner, and instrument what is imported now or later."""
        super().init_worker(worker_id, store, *args, **kwargs)
        acquire(self._instrumentations)

    def teardown_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        """Forget the store; the last runner of the process ends the instrumentation."""
        release(self._instrumentations)
        super().teardown_worker(worker_id, *args, **kwargs)
