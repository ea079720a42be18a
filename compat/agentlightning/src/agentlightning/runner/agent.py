"""The runner of agents."""

from typing import Any, Literal, TypeVar

from agl import LitAgentRunner as _LitAgentRunner, Tracer

T_task = TypeVar("T_task")


class LitAgentRunner(_LitAgentRunner[T_task]):
    """agl's, with 0.3's parameters.

    ``poll_interval`` has no effect, as the store wakes who waits, nor ``interval_jitter`` and
    ``heartbeat_launch_mode``: heartbeats come at equal intervals from a thread. Every runner of
    agl's class is one, too.
    """

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return _LitAgentRunner in other.__mro__ if cls is LitAgentRunner else NotImplemented

    def __init__(
        self,
        tracer: Tracer,
        max_rollouts: int | None = None,
        poll_interval: float = 5.0,
        heartbeat_interval: float = 10.0,
        interval_jitter: float = 0.5,
        heartbeat_launch_mode: Literal["asyncio", "thread"] = "thread",
        heartbeat_include_gpu: bool = False,
        **options: Any,
    ) -> None:
        options["heartbeat_include_gpu"] = heartbeat_include_gpu
        super().__init__(tracer, max_rollouts, heartbeat_interval, **options)
