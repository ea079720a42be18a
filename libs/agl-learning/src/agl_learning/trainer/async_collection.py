"""Rollouts of the next steps, which run while a step is trained: nobody waits for the other.

Steps take what was collected for them in their order. So a batch is the tasks that are its turn,
slow ones too: to take whatever ends first would train more of what is quick. With ``max_staleness``
S the rollouts of S later steps are under way, and no call of a step was sampled by weights that are
more than S updates behind; what is older all the same is rejected.

Source: asynchronous reinforcement learning with bounded staleness (AReaL, arXiv:2505.24298).
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agl.errors import ConfigError, StoppedError
from agl_learning.collect.step_metrics import version_lags

if TYPE_CHECKING:
    from agl_learning.collect.results import Collected
    from agl_learning.resume.collection_journal import Request

logger = logging.getLogger("agl.learning")


def check_ahead(owner: str, max_staleness: int, **beside: object) -> None:
    """Refuse what cannot be had where rollouts are ahead of the weights.

    Args:
        owner: Whose options they are.
        max_staleness: So many updates the weights that sample may be behind.
        beside: Its other options of these names.

    Raises:
        ConfigError: It names the option.
    """
    if not max_staleness:
        return
    why = {
        "deterministic": "which weights answer a call then depends on time",
        "max_refills": "the tasks of later steps are drawn before it is known what a step lacks",
    }
    for name, reason in why.items():
        if beside.get(name):
            raise ConfigError(
                f"{owner}: {name} cannot be had with max_staleness={max_staleness}: {reason}. "
                f"Leave one of the two out"
            )


def reject_stale(collected: "Collected", version: int, max_staleness: int) -> dict[str, int]:
    """Let no rollout be trained of which older weights than allowed sampled a call.

    Its calls go into the bin ``rejected``. Calls whose version nobody knows are taken for fresh.

    Args:
        collected: What was collected for a step.
        version: Of the weights that are to be changed.
        max_staleness: So many updates others may be behind them.

    Returns:
        Metrics: ``rollouts/stale``, how many were rejected, and ``version_lag/max``, of all others.
    """
    stale, most = 0, 0
    for one in collected.ended:
        lag = max(version_lags(one.rows, version), default=0)
        if lag <= max_staleness:
            most = max(most, lag)
        elif one.unusable is None:
            stale += 1
            why = f"weights {lag} updates behind sampled it, and max_staleness is {max_staleness}"
            one.unusable = ("rejected", why)
    return {"rollouts/stale": stale, "version_lag/max": most}


@dataclass
class _Begun:
    request: "Request"
    order: dict[str, Any]
    """State of the order of tasks once these are taken."""
    running: "asyncio.Task[Collected]"


class Ahead:
    """Requests of later steps that are under way; see the module.

    Args:
        run: Gives what comes of a request.
    """

    def __init__(self, run: "Callable[[Request], Coroutine[Any, Any, Collected]]") -> None:
        self._run = run
        self._begun: dict[int, _Begun] = {}

    def __contains__(self, after: int) -> bool:
        """Whether the rollouts after so many steps are under way."""
        return after in self._begun

    def begin(self, request: "Request", order: dict[str, Any]) -> None:
        """Have the rollouts of a later step run."""
        running = asyncio.create_task(self._run(request), name=f"agl-ahead-{request.after}")
        self._begun[request.after] = _Begun(request, order, running)

    async def take(
        self, after: int, renew: "Callable[[Request], Request]"
    ) -> "tuple[Collected, dict[str, Any]]":
        """What came of the rollouts after so many steps, and the order of tasks then.

        Args:
            after: So many steps.
            renew: The same request as it is to be by now; another one if it was given up meanwhile,
                which is then run.
        """
        while True:
            begun = self._begun[after]
            await asyncio.wait([begun.running])
            del self._begun[after]
            collected = begun.running.result()
            now = renew(begun.request)
            if now.key == begun.request.key:
                return collected, begun.order
            self.begin(now, begun.order)

    async def wait(self) -> None:
        """Until those under way have ended: the run was asked to stop, and they were, too."""
        if running := [begun.running for begun in self._begun.values()]:
            await asyncio.wait(running)

    async def stop(self) -> "list[Request]":
        """Cancel what is under way; the requests that nobody has taken."""
        left, self._begun = [*self._begun.values()], {}
        for begun in left:
            begun.running.cancel()
        ends = await asyncio.gather(*(begun.running for begun in left), return_exceptions=True)
        for begun, end in zip(left, ends, strict=True):
            if isinstance(end, Exception) and not isinstance(end, StoppedError):
                step = begun.request.after + 1
                logger.warning("the rollouts of step %d had failed: %s", step, end, exc_info=end)
        return [begun.request for begun in left]
