"""The hook that all trackers share: what of a run goes to a tracker, and when."""

import asyncio
import importlib
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import agl
from agl.algorithm.base import Algorithm
from agl.env import LightningEnvVar, resolve_str_env_var
from agl.errors import BrokenComponentError, install_line
from agl.store.base import LightningStore
from agl.types import ResourcesUpdate
from agl.utils.checks import check_numbers
from agl.utils.secrets import hide
from agl_trackers.delivery import Delivery
from agl_trackers.records import Prompt, RunAbout, Sample, about_run, sample_of
from agl_trackers.rollouts import ended_rollouts
from agl_trackers.staging import Staging

MOST_TO_READ = 4
"""Steps whose rollouts wait to be read, at most."""
PACE, LONGEST_PAUSE = 20, 10.0
"""After the rollouts of a step were read, so many times as long nothing is read; seconds at most.
Where steps follow each other faster, some have no table, and the run has its time."""


@dataclass(kw_only=True, eq=False)
class Tracker(agl.Hook, ABC):
    """What a run tells a tracker.

    A subclass says how it is told: ``begin`` and the methods after it are called one after the
    other in a thread of their own, with what is said in a queue between. What they raise is logged
    and counted, and the run goes on. A subclass for a tracker without artefacts or tables leaves
    those methods out.
    """

    rollouts: int = 8
    """How many rollouts of every step go into the table; 0 leaves it out."""
    checkpoints: bool = True
    """Whether checkpoints are uploaded, where the tracker keeps files; their names always go."""
    wait_seconds: float = 10.0
    """Longest that the end of the run waits for the tracker; a call that has hung for so long
    already is not waited for."""
    label: ClassVar[str] = ""
    package: ClassVar[str | None] = None
    """The module that it needs, and the extra of agl-trackers that brings it is ``label``."""

    def __post_init__(self) -> None:
        owner = type(self).__name__
        check_numbers(owner, whole=True, least=0, rollouts=self.rollouts)
        check_numbers(owner, least=0, wait_seconds=self.wait_seconds)
        require(self.label, self.package)
        self._delivery: Delivery | None = None
        """Set when a run starts, as is all else that belongs to one."""

    # --- for subclasses, in the tracker's thread

    @abstractmethod
    def begin(self, about: RunAbout) -> None:
        """Begin the tracker's run, or go on with the one that this run had."""

    @abstractmethod
    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of a step, or of an evaluation (``val/...``) after one."""

    def log_rollouts(self, step: int, samples: Sequence[Sample]) -> None:
        """A table of rollouts."""

    def log_prompt(self, step: int, prompt: Prompt) -> None:
        """A prompt that was published after ``step``."""

    def log_checkpoint(self, step: int, path: str, folder: Path | None) -> None:
        """A checkpoint; ``folder`` is None where nothing is to be uploaded."""

    @abstractmethod
    def end(self, error: str | None) -> None:
        """The run has ended, with ``error`` where it failed."""

    # --- hooks

    async def on_run_start(self, algorithm: Algorithm, store: LightningStore) -> None:
        self._store, self._step, self._read_at = store, 0, time.time()
        self._prompts: dict[str, str] = {}
        self._to_read: deque[tuple[str, int, int | None]] = deque()
        self._reading: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()
        name = self.label or type(self).__name__
        self._delivery, self._staging = Delivery(name), Staging(name)
        about = await about_run(algorithm, store)
        if about.folder is not None and about.generation > 1:
            self._staging.clean(about.folder)
        self._delivery.put("the start", partial(self._begin, self._delivery, about))

    def on_resources_published(self, resources: ResourcesUpdate) -> None:
        if self._delivery is None:
            return
        for name, resource in resources.resources.items():
            text = getattr(resource, "template", None)
            if isinstance(text, str) and self._prompts.get(name) != text:
                self._prompts[name] = text
                prompt = Prompt(name, resources.resources_id, hide(text))
                self._put("prompts", self.log_prompt, self._step, prompt)

    def on_step_end(self, algorithm: Algorithm, step: int, metrics: Mapping[str, Any]) -> None:
        self._step = step
        self._put("metrics", self.log_metrics, step, numbers_of(metrics))
        self._sample(algorithm, step, step)

    def on_evaluation_end(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._put("evaluations", self.log_metrics, step, numbers_of(metrics))

    def on_checkpoint_saved(self, step: int, path: str | Path) -> None:
        staged = None
        if self.checkpoints and self._delivery is not None and Path(path).exists():
            if self._delivery.is_idle:
                self._staging.clear()  # those whose turn came while it was not tried
            staged = self._staging.add(Path(path))
            if staged is None:
                self._delivery.drop("earlier checkpoints were not yet uploaded")
        self._put("checkpoints", self._upload, step, str(path), staged)

    async def on_run_end(self, algorithm: Algorithm, error: BaseException | None) -> None:
        if self._delivery is None:
            return
        if self._step == 0 and error is None:
            self._sample(algorithm, 0, None)  # it has no steps
        self._ending.set()
        loop = asyncio.get_running_loop()
        until = loop.time() + self.wait_seconds
        if self._reading is not None:
            left = max(0.0, self.wait_seconds - self._delivery.seconds_under_way)
            await asyncio.wait([self._reading], timeout=left)
            if not self._reading.done():
                self._reading.cancel()
                self._delivery.drop("rollouts were left to be read", len(self._to_read))
                self._to_read.clear()
        text = None if error is None else hide(f"{type(error).__name__}: {error}")
        left = max(0.0, until - loop.time())
        await self._delivery.close(left, partial(self.end, text), hung=self.wait_seconds)
        await asyncio.to_thread(self._staging.clear)

    def _begin(self, delivery: Delivery, about: RunAbout) -> None:
        if self.package is not None:
            delivery.doing(f"the import of {self.package!r}")
            self.library: Any = importlib.import_module(self.package)
            delivery.doing("the start")
        self.begin(about)

    def _upload(self, step: int, path: str, staged: Path | None) -> None:
        try:
            self.log_checkpoint(step, path, staged)
        finally:
            self._staging.remove(staged)

    def _put(self, what: str, method: Any, *arguments: Any) -> None:
        if self._delivery is not None:
            self._delivery.put(what, partial(method, *arguments))

    def _sample(self, algorithm: Algorithm, step: int, of_step: int | None) -> None:
        """Read rollouts beside the run, those of one step after those of another."""
        if not self.rollouts or self._delivery is None:
            return
        if self._delivery.is_failing:
            self._delivery.drop("rollouts were not read, as it had failed")
            return
        if len(self._to_read) >= MOST_TO_READ:
            self._delivery.drop("rollouts of earlier steps were not yet read")
            return
        run_id, _ = algorithm.get_run() or ("run", 1)
        self._to_read.append((run_id, step, of_step))
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        delivery = self._delivery
        while self._to_read and delivery is not None:
            await delivery.idle()  # nothing is read for a tracker that hangs
            run_id, step, of_step = self._to_read[0]
            if delivery.is_failing:
                self._to_read.popleft()
                delivery.drop("rollouts were not read, as it had failed")
                continue
            begun, since, self._read_at = time.perf_counter(), self._read_at, time.time()
            try:
                about = self._store, run_id, of_step, self.rollouts
                found = await ended_rollouts(*about, since=since)
                samples = [await sample_of(self._store, one) for one in found]
            except Exception as error:
                self._to_read.popleft()
                delivery.drop(f"rollouts could not be read ({type(error).__name__})")
                continue
            self._to_read.popleft()
            if samples:
                self._put("rollouts", self.log_rollouts, step, samples)
            else:
                delivery.drop("a step had no rollouts that had ended")
            pause = min(PACE * (time.perf_counter() - begun), LONGEST_PAUSE)
            with suppress(TimeoutError):  # at the end of the run there is none
                await asyncio.wait_for(self._ending.wait(), pause)

    def __getstate__(self) -> dict[str, Any]:
        return {**options_of(self), "_delivery": None}


def options_of(tracker: Any) -> dict[str, Any]:
    """A tracker's state for another process: its options, and nothing that belongs to a run."""
    return {each.name: getattr(tracker, each.name) for each in fields(tracker)}


def numbers_of(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that are numbers, and finite: trackers draw no others."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and math.isfinite(value) and name != "step"
    }


def require(name: str, package: str | None) -> None:
    """Refuse a tracker whose library is not installed; on a machine of runners none is needed.

    Raises:
        BrokenComponentError: It is not; the message says what to install.
    """
    role = resolve_str_env_var(LightningEnvVar.AGL_CURRENT_ROLE)
    if package is None or role == "runner":
        return
    try:
        is_here = find_spec(package) is not None
    except ModuleNotFoundError:  # not even the package that it is in
        is_here = False
    if not is_here:
        raise BrokenComponentError(
            f"tracker {name!r} needs {package!r}, which is not installed. "
            f"Run: {install_line(f'agl-trackers[{name}]')}"
        )
