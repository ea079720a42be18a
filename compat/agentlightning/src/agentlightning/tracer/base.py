"""The contract of a tracer, and which one is active."""

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from agentlightning._errors import ActiveTracerError, raised_as
from agl import (
    LightningStore,
    OtelTracer,
    Tracer as Tracer,
    clear_active_tracer as clear_active_tracer,
    get_active_tracer as get_active_tracer,
    set_active_tracer as _set_active_tracer,
)
from agl.errors import TracerError


def set_active_tracer(tracer: Tracer) -> None:
    """Make a tracer the active one; see ``agl.set_active_tracer``."""
    with raised_as(ActiveTracerError, TracerError):
        _set_active_tracer(tracer)


class WithRoot(OtelTracer):
    """A tracer whose traces have one span that holds all others."""

    def root_of(self, label: str) -> tuple[str, dict[str, Any]]:
        """Name and attributes of that span, by the name of the trace."""
        return label, {}

    @contextlib.asynccontextmanager
    async def trace_context(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        name: str | None = None,
        *,
        store: LightningStore | None = None,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
    ) -> AsyncGenerator[Any]:
        """Collect spans below one that is named after the trace; see ``Tracer.trace_context``."""
        root, about = self.root_of(name or rollout_id or "agentlightning")
        async with super().trace_context(
            name, store=store, rollout_id=rollout_id, attempt_id=attempt_id
        ) as tracer:
            with self.start_as_current_span(root, attributes=about):
                yield tracer
