"""The seam to what records runs: agl-runs, which is found by its entry point.

A trainer hands a ``RunRequest`` to a ``Recorder`` and gets a ``Recording``, one start of a run,
which leaves a ``RunResult``. The classes here keep nothing: they serve without agl-runs.
"""

import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agl.algorithm.run_result import RunResult
from agl.errors import EndedEarlyError, ReplacedError, StoppedError
from agl.plugins import registry
from agl.plugins.build import Given
from agl.types import Dataset

if TYPE_CHECKING:
    from agl.agent.base import LitAgent
    from agl.algorithm.base import Algorithm
    from agl.plugins.hooks import HookCaller
    from agl.store.base import LightningStore

logger = logging.getLogger(__name__)

GROUP = registry.GROUPS["recorder"]
NO_RECORD = "agl-runs is not installed: nothing was written down of this run"


@dataclass(frozen=True)
class RunRequest:
    """Which run is asked for."""

    run_id: str | None = None
    """None is a new one, or the one in the folder."""
    resume: bool = False
    """Whether that run goes on; else it must be new."""
    folder: Path | None = None
    """That it is to have; None takes that of the record, or one under ``agl-runs``."""
    force: bool = False
    """Whether it goes on although its results would change."""
    makes_folder: bool = True
    """Whether a folder that is not there is made; an algorithm that names it may make it itself."""
    config: Mapping[str, Any] | None = None
    """For the record, without secrets; None takes the options of the algorithm."""


@dataclass
class Recording:
    """One start of a run, while it is under way."""

    folder: Path | None = None
    """Of the run, for what the algorithm writes."""
    reason: str | None = None
    """Why it ended before its end, at a point from which it can go on."""
    stopped: StoppedError | None = None
    """The error that ``fit`` raises when the algorithm stopped early."""
    result: RunResult = field(default_factory=RunResult)
    """What it came to, once it has ended."""

    how_to_go_on = "it cannot be resumed: agl-runs, which keeps records of runs, is not installed"
    """For messages."""

    @property
    def about(self) -> dict[str, Any]:
        """What the algorithm is told of it: fields of ``RunContext``."""
        return {"folder": self.folder}

    def store_of_algorithm(self, store: "LightningStore") -> "LightningStore":
        """The store with which its algorithm works."""
        return store

    def replaced(self) -> ReplacedError | None:
        """What the store has said if another start of the run has taken over."""

    async def cancel_leftovers(self, store: "LightningStore") -> None:
        """Cancel what earlier starts of the run left queued or under way, if there were any."""

    def note_stopped(self, error: StoppedError) -> None:
        """The algorithm has stopped at a point from which it can go on; ``error`` says why."""
        text = f"the run has stopped before its end, {error}; {self.how_to_go_on}"
        self.reason, self.stopped = str(error), EndedEarlyError(text)

    def note_replaced(self, error: ReplacedError) -> None:
        """The store refuses what this start writes."""
        self.reason, self.stopped = str(error), EndedEarlyError(str(error))

    def note_spent(self, budget: str) -> None:
        """The gateway has refused model calls, or would; ``budget`` is the limit."""
        self.reason = self.reason or f"the budget of the run is spent ({budget})"
        logger.warning("%s: it ends with what it has; %s", self.reason, self.how_to_go_on)


class Recorder:
    """Records runs; this one keeps nothing, and refuses to resume."""

    def check(self, request: RunRequest) -> None:
        """Refuse a request that makes no sense, or that needs agl-runs if it is not installed."""
        has_folder = request.folder is not None and request.makes_folder
        if request.run_id is not None or request.resume or request.force or has_folder:
            registry.load_only(GROUP)

    def default_store(self, request: RunRequest) -> "Given[LightningStore]":
        """The store of a run that is given none."""
        return "memory"

    @contextmanager
    def recording(
        self,
        request: RunRequest,
        store: "LightningStore",
        agent: "LitAgent[Any]",
        algorithm: "Algorithm",
        datasets: Mapping[str, Dataset[Any]],
        hooks: "HookCaller",
    ) -> Generator[Recording]:
        """A block that is one start of a run; how it ends is noted.

        ``datasets`` has ``train`` and ``val``, if they are given.

        Raises:
            ConfigError: The run cannot be begun or resumed; nothing was started.
        """
        yield (run := Recording(request.folder, result=RunResult(warnings=[NO_RECORD])))
        if run.stopped is not None:
            raise run.stopped


def find_recorder() -> Recorder:
    """The recorder that is installed."""
    names = registry.names_in(GROUP)
    make: Callable[[], Recorder] = registry.load(GROUP, names[0]) if names else Recorder
    return make()
