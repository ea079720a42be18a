"""When a run ends before its last step, well or not."""

import logging
from collections.abc import Sequence
from typing import Any

from agl.errors import AlgorithmError
from agl_learning.collect.results import Collected
from agl_learning.collect.step_metrics import why_nothing
from agl_learning.run.checkpoint import Progress, set_aside
from agl_learning.trainer.base import Training
from agl_learning.trainer.options import Stopping

logger = logging.getLogger("agl.learning")

TARGET_STEPS = 3
"""So many steps in a row must reach ``stopping.target_reward``."""


class Ending:
    """Counts the steps in a row that trained nothing, and looks for rewards that will do."""

    def __init__(self, training: Training, stopping: Stopping) -> None:
        self._training, self._stopping = training, stopping
        self.idle_steps = 0
        """In a row, up to the newest one."""
        self._is_solved = False
        self._vain: tuple[int, str] | None = None
        """The newest step after which a run that ends has trained nothing, and why."""

    def begin(self, progress: Progress) -> None:
        """Go on as a checkpoint has it."""
        self._vain = None
        self.idle_steps = progress.idle_steps
        enough = self.idle_steps >= self._stopping.max_idle_steps
        self._is_solved = progress.is_solved and enough

    def progress(self) -> dict[str, Any]:
        """What a checkpoint notes, by the fields of ``Progress``."""
        return {"idle_steps": self.idle_steps, "is_solved": self._is_solved}

    def why_over(self, rewards: Sequence[float | None]) -> str:
        """Why no step comes any more; "" where nothing of this speaks against one."""
        if self._is_solved:
            return (
                f"no rollout had an advantage in the last {self.idle_steps} steps, so nothing is "
                "left to learn from these tasks"
            )
        target, newest = self._stopping.target_reward, rewards[-TARGET_STEPS:]
        is_reached = target is not None and all(
            reward is not None and reward >= target for reward in newest
        )
        is_over = is_reached and len(newest) == TARGET_STEPS
        return f"{TARGET_STEPS} steps reached the target_reward {target:g}" if is_over else ""

    async def after_step(
        self, number: int, collected: Collected, trained: bool, is_solved: bool
    ) -> None:
        """Look whether the run is to go on.

        Raises:
            AlgorithmError: It is not: nothing could be trained for too long.
        """
        training = self._training
        if trained:
            self.idle_steps = 0
            return
        self.idle_steps += 1
        is_enough = self.idle_steps >= self._stopping.max_idle_steps
        has_learned = training.session.totals.counts["calls_trained"] > 0
        if has_learned and is_solved:
            self._is_solved = is_enough
            return
        why = why_nothing(collected)
        if is_enough:
            await self._fail(number, why)
        # Few rollouts may have equal rewards by chance; without any row something is wrong.
        if not has_learned and "zero_advantage" not in collected.ledger.reasons():
            self._vain = number, why
        logger.warning("step %d trained nothing: %s", number, why)

    async def check_end(self) -> None:
        """Refuse to end a run well that trained nothing, whoever ends it.

        Raises:
            AlgorithmError: It is such a run.
        """
        if self._vain and self._vain[0] == self._training.session.steps_done:
            await self._fail(*self._vain)

    async def _fail(self, number: int, why: str) -> None:
        """End with an error; what failed the idle steps may be mended, so they are drawn anew."""
        training, after = self._training, number - self.idle_steps
        # A run that was stopped amid them has saved them.
        set_aside(training.session.folder, after)
        await training.session.records.redraw("train", after)
        raise AlgorithmError(
            f"{training.title}: nothing could be trained in {self.idle_steps} steps in a row, "
            f"up to step {number}. The last one: {why}. When the run goes on, they are drawn anew"
        )
