"""The store in memory."""

import logging
from collections.abc import Callable
from typing import Any

from agentlightning.store.base import OneByOne
from agl import InMemoryLightningStore as _InMemoryLightningStore, Rollout, Span
from agl.errors import ConfigError

logger = logging.getLogger(__name__)


class InMemoryLightningStore(OneByOne, _InMemoryLightningStore):
    """agl's, with 0.3's parameters. It forgets nothing, so the limits of memory are refused.

    Runners store through the methods of a subclass, except through its ``add_otel_span``: what
    reaches a store is a ``Span``. It comes to ``add_span``.

    Args:
        thread_safe: Whatever it is, the store is.
        eviction_memory_threshold: None.
        safe_memory_threshold: None.
        span_size_estimator: None.
        tracker: None; a served store is counted, see ``LightningStoreServer``.
        scan_debounce_seconds: At most so long passes until a silent attempt is noticed; a second
            where it is more.
        **agls: Parameters that only ``agl.InMemoryLightningStore`` has.
    """

    def __init__(
        self,
        *,
        thread_safe: bool = False,
        eviction_memory_threshold: float | int | None = None,
        safe_memory_threshold: float | int | None = None,
        span_size_estimator: Callable[[Span], int] | None = None,
        tracker: Any = None,
        scan_debounce_seconds: float = 10.0,
        **agls: Any,
    ) -> None:
        evicting = (
            "the store forgets nothing; what must outlive memory goes to SqliteLightningStore"
        )
        for name, value, why in (
            ("eviction_memory_threshold", eviction_memory_threshold, evicting),
            ("safe_memory_threshold", safe_memory_threshold, evicting),
            ("span_size_estimator", span_size_estimator, evicting),
            ("tracker", tracker, "give it to LightningStoreServer(tracker=...)"),
        ):
            if value is not None:
                raise ConfigError(
                    f"InMemoryLightningStore: {name}={value!r} is not supported; leave it out: "
                    f"{why}"
                )
        super().__init__(
            thread_safe=thread_safe,
            **{"scan_interval_seconds": min(1.0, max(0.05, scan_debounce_seconds)), **agls},
        )

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "add_otel_span" in vars(cls) and "add_span" not in vars(cls):
            logger.warning(
                "%s.add_otel_span: runners do not call it, as they store spans that are no longer "
                "OpenTelemetry's; override add_span(self, span) instead",
                cls.__qualname__,
            )

    async def wait_for_rollout(
        self, rollout_id: str, timeout: float | None = None
    ) -> Rollout | None:
        """The rollout once it has ended; None if it has not within ``timeout`` seconds."""
        ended = await self.wait_for_rollouts(rollout_ids=[rollout_id], timeout=timeout)
        return ended[0] if ended else None
