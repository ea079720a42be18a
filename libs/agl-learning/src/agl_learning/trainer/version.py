"""Training in which every step makes a whole version of the model, whoever serves and trains it.

Per step, which is called an iteration: serve the newest version of the model, publish it through
the gateway, run the tasks, choose what to learn from, train, and the next version is there. A
version outlives the process; the checkpoint after an iteration says where it is. A training that
had not ended is begun again, from the version before, with the same examples.
"""

import asyncio
import hashlib
import json
import logging
import time
from abc import abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from agl.errors import AlgorithmError
from agl_learning.collect.results import Collected
from agl_learning.collect.step_metrics import collected_metrics
from agl_learning.collect.task_order import Tasks
from agl_learning.run.checkpoint import Progress, whole_checkpoints
from agl_learning.run.folder import check_own
from agl_learning.run.start import Origin, mend_generation, run_folder
from agl_learning.trainer.base import Training
from agl_learning.trainer.learned import Learned, only_finite
from agl_learning.trainer.loop import run as run_steps
from agl_learning.trainer.options import Evaluation
from agl_learning.trainer.replay import replay as replay_step
from agl_learning.trainer.source import InStep, Runners
from agl_models.versions import Version
from agl_records.types import ExclusionReason
from agl_runs.files import write_whole
from agl_runs.options import Count

logger = logging.getLogger("agl.learning")

OF_TRAINING = "train/"
"""Beginning of the names of metrics that the training gave."""


@dataclass(kw_only=True, eq=False, repr=False)
class FineTuning(Training):
    """Serve, roll out, choose, train, again; the base of ``SFT``, ``DPO`` and remote trainers.

    A subclass gives ``prepare``, ``serve``, ``select`` and ``train``, and where it holds something
    ``clean_up``. All of them may use ``self.session``.

    Args:
        iterations: Number of iterations; a resumed run may have more.
        tasks_per_iteration: None takes as many as the first pass of ``task_order`` has: all, by
            default.
        rollouts_per_task: How often each of them runs in an iteration.
        run_dir: Folder for what the training writes; where it holds an earlier part of the run,
            that is continued. None takes that of the run (``run_dir`` of the file or the trainer),
            and where it has none a new one under ``agl-runs``.
    """

    growing_options = frozenset({"iterations"})
    makes_versions = True

    iterations: Count = 2
    tasks_per_iteration: Count | None = None
    rollouts_per_task: Count = 4
    evaluation: Evaluation = Evaluation(every=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.versions: list[Version] = []
        """All that the run has made, and what it began with."""
        self.about_examples: dict[str, Any] = {}
        """Metrics of what the newest examples were chosen from."""

    # --- what a subclass says

    @abstractmethod
    async def prepare(self) -> Version:
        """Refuse what cannot work, before anything is started; the version that a run begins with.

        Called when a run is continued, too.

        Raises:
            ConfigError: An option, a model or a machine that will not do.
        """

    def is_whole(self, version: Version) -> bool:
        """Whether a version that was trained is still what it was; True where nobody can say."""
        return True

    @abstractmethod
    def select(self, collected: Collected, iteration: int) -> list[dict[str, Any]]:
        """What is trained, as JSON objects, in order; every open call gets a bin of the ledger.

        Deterministic: after a kill it is asked again. The calls in ``collected.ended[i].rows`` are
        open, the others have their bin.

        Raises:
            AlgorithmError: There is nothing to train; it says why. The ledger is kept all the same.
        """

    @abstractmethod
    async def train(self, examples: Path, version: Version, number: int) -> Version:
        """Make version ``number`` from ``version`` and the examples; it is whole when this returns.

        After a kill it is called again with the same arguments. What it needs then, it keeps in
        files of ``self.session.folder``; see ``agl_learning.run.notes``.

        Args:
            examples: JSON lines, of ``select``.
            version: The newest one.
            number: Of the version that comes.
        """

    def fingerprint(self, version: Version) -> str | None:
        """What tells the weights of a version from others, bit for bit; None where nobody can."""
        return None

    run = run_steps
    replay = replay_step

    # --- the loop's questions

    @property
    def num_steps(self) -> int:
        return self.iterations

    @property
    def num_copies(self) -> int:
        return self.rollouts_per_task

    @property
    def version(self) -> Version:
        return self.versions[-1]

    def intervals(self) -> dict[str, int | None]:
        return super().intervals() if self.evaluation != type(self).evaluation else {}

    def digest(self) -> str | None:
        return self.fingerprint(self.version) if self.deterministic else None

    def find_start(self) -> Origin:
        self.gateway()
        folder = run_folder(self, self.run_dir)
        mend_generation(folder)
        check_own(folder, self.name)
        self.check_folder(folder)
        usable = (one for one in whole_checkpoints(folder) if self.is_usable(one))
        newest = next(usable, None)
        if newest is not None:
            logger.info("%s goes on after version %d", folder, Progress.of(newest).version)
        return Origin(folder, newest, folder)

    def is_usable(self, checkpoint: Path) -> bool:
        version = Version(**Progress.of(checkpoint).made[-1])
        if self.is_whole(version):
            return True
        logger.warning(
            "version %d in %s is damaged and is left out: it is trained once more, from the one "
            "before it",
            version.number,
            version.ref,
        )
        return False

    async def begin(self, checkpoint: Path | None, progress: Progress, folder: Path) -> None:
        self.versions = [await self.prepare()]
        if checkpoint is not None:
            self.versions += [Version(**one) for one in progress.made]

    def find_source(self, runners: Runners, tasks: Tasks, taken: int) -> InStep:
        return InStep(runners, tasks, self.tasks_per_iteration or tasks.first_pass(), taken)

    def progress(self) -> dict[str, Any]:
        return {"made": [vars(one) for one in self.versions[1:]]}

    def save(self, folder: Path) -> None:
        """Nothing: the version is where its training wrote it."""

    def summed_up(self) -> dict[str, Any]:
        return {"iterations": self.version.number, "model": self.version.ref}

    async def learn(self, collected: Collected, number: int) -> Learned:
        session = self.session
        try:
            examples = self.select(collected, number)
        except AlgorithmError as error:
            # Started again, the iteration draws new rollouts: these are accounted for.
            ledger, why = collected.ledger, cast("ExclusionReason", "not_selected")
            ledger.exclude_trained({one.key: (why, str(error)) for one in ledger.trained})
            await session.keep(collected, number, self.version.number)
            await session.records.redraw("train", number - 1)
            raise
        file = session.folder / "iterations" / f"{number:04d}" / "examples.jsonl"
        if not isinstance(cast("object", examples), list):
            raise AlgorithmError(
                f"select of {self.title}: expected a list of examples; got {examples!r:.80}"
            )
        write_whole(file, "".join(json.dumps(one) + "\n" for one in examples))
        self.about_examples = collected_metrics(collected, self.trained_model())
        await self.end_serving()
        start = time.perf_counter()
        logger.info("iteration %d: training on %d examples", number, len(examples))
        given = cast("object", await self.train(file, self.version, number))
        if not isinstance(given, Version) or given.number != number:
            raise AlgorithmError(
                f"train of {self.title}: expected Version({number}, ...), which it was to make; "
                f"got {given!r:.80}"
            )
        made = replace(given, metrics=only_finite(f"train of {self.title}", given.metrics))
        self.versions.append(made)
        trained = {OF_TRAINING + name: value for name, value in made.metrics.items()}
        before = session.records.find("train", number - 1)
        if before and before.metrics and not before.metrics.items() >= trained.items():
            # Another was made before, and that is gone, with all that came of it.
            await session.records.redraw("val", number)
        metrics = {
            "version": number,
            "examples": len(examples),
            **self.about_examples,
            **trained,
            "time/train": time.perf_counter() - start,
        }
        lines = await asyncio.to_thread(file.read_bytes)
        rows = [hashlib.sha256(line).hexdigest()[:12] for line in lines.splitlines()]
        return Learned(metrics, True, rows)
