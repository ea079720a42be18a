"""Where a run begins: its folder, and the checkpoint that it goes on from, if there is one.

The trainer asks before runners are forked: nothing here imports more than files need.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agl.errors import ConfigError, install_line
from agl_learning.run.checkpoint import (
    ASIDE,
    Progress,
    find_checkpoint,
    home_of,
    newest_first,
    whole_checkpoints,
)
from agl_learning.run.folder import Generation, check_algorithm, read_generation, write_generation
from agl_models.versions import MODEL_NAME
from agl_runs.folders import FILE, default_folder, new_run_id

if TYPE_CHECKING:
    from agl.algorithm.base import Algorithm
    from agl.algorithm.gateway import Gateway

logger = logging.getLogger("agl.learning")

LATER_STARTS = 1000
"""A checkpoint does not know how many starts came after it; the next one must come after them."""


def mend_generation(folder: Path) -> None:
    """Write ``run.json`` again, as the newest checkpoint has it, where it is damaged or gone.

    Raises:
        ConfigError: It is damaged, and there is no whole checkpoint.
    """
    why, problem = "is gone", None
    try:
        if read_generation(folder) is not None:
            return
    except ConfigError as error:
        why, problem = "is damaged", error
    newest = next(whole_checkpoints(folder), None)
    start = {} if newest is None else Progress.of(newest).start
    if start:
        logger.warning("%s %s; %s has what it said", folder / FILE, why, newest)
        known = Generation(**start)
        write_generation(folder, replace(known, number=known.number + LATER_STARTS))
    elif problem is not None:
        raise problem


def folder_of(resume_from: Path) -> Path | None:
    """The folder of the run that a checkpoint or a folder names; None for one that lies apart."""
    if resume_from.parent.name == "checkpoints":
        return resume_from.parent.parent
    is_run = _ended_early(resume_from) or (resume_from / "checkpoints").is_dir()
    return resume_from if is_run else None


def free_gateway(algorithm: "Algorithm", owner: str) -> "Gateway":
    """The gateway of a run; it has no model of our name yet.

    Raises:
        ConfigError: There is none, or it has such a model.
    """
    gateway = algorithm.get_llm_proxy()
    if gateway is None:
        raise ConfigError(
            f"{owner} needs a gateway that records model calls. Run: "
            f"{install_line('agl-gateway')}, or pass Trainer(llm_proxy=...)"
        )
    gateway.check_free(MODEL_NAME)
    return gateway


def run_folder(algorithm: "Algorithm", run_dir: str | None) -> Path:
    """The folder of a run; absolute, as an agent may change that of the process."""
    return Path(run_dir or algorithm.get_run_folder() or default_folder(new_run_id())).resolve()


@dataclass(frozen=True)
class Origin:
    """Of one start of a run."""

    folder: Path
    """Of the run."""
    checkpoint: Path | None
    """None begins at step 0."""
    home: Path
    """The folder of the run that wrote the checkpoint, or ended before its first one."""

    @property
    def is_same_run(self) -> bool:
        """Whether the run goes on, and is not another one from the same checkpoint."""
        return self.folder.resolve() == self.home.resolve()

    @property
    def other_run(self) -> str | None:
        """What of another run it begins from: a checkpoint, or the folder where there is none."""
        return None if self.is_same_run else str((self.checkpoint or self.home).resolve())

    def progress(self) -> Progress:
        """That of the checkpoint, but not what another run adds up, and how it ended."""
        found = Progress(0, 0) if self.checkpoint is None else Progress.of(self.checkpoint)
        if self.is_same_run:
            return found
        return replace(found, totals={}, hooks={}, ended="", idle_steps=0, is_solved=False)


def find_origin(
    name: str, run_dir: str | None, resume_from: str | None, steps: int | None
) -> Origin:
    """Check everything about a start that can be said before a model is loaded.

    ``run_dir`` and ``resume_from`` are options of ``OnlineTraining``; without ``steps`` a run that
    has all its steps may start again.

    Raises:
        ConfigError: Checkpoint or folder are not usable, or nothing is left to do.
    """
    origin = _find(run_dir, resume_from)
    for folder in (origin.folder, origin.home):
        check_algorithm(folder, name)
    if resume_from is None or not origin.is_same_run:
        # In its folder there must be no run, or one to begin again: metrics would be mixed.
        begun = read_generation(origin.folder)
        place = None if begun is None else begun.origin
        has_metrics = (origin.folder / "metrics.jsonl").exists()
        if has_metrics if place is None else place != origin.other_run:
            which = "" if place is None else f", which began from {place!r}"
            raise ConfigError(
                f"{str(origin.folder)!r} holds another run already{which}. Give another run_dir, "
                f"or continue that run with resume_from={str(origin.folder)!r}"
            )
    if origin.is_same_run and origin.checkpoint and origin.checkpoint.name.startswith(ASIDE):
        raise ConfigError(
            f"the run in {str(origin.folder)!r} went back behind {str(origin.checkpoint)!r}, and "
            "what led there does not count any more. Give another run_dir, and a run of its own "
            "begins there"
        )
    progress = origin.progress()
    before, step = progress.start.get("algorithm"), progress.step
    if before not in (None, name):
        raise ConfigError(
            f"the checkpoint {str(origin.checkpoint)!r} is of another algorithm: {before!r} then, "
            f"{name!r} now. Give another checkpoint"
        )
    if origin.checkpoint is not None and steps is not None and step >= steps:
        raise ConfigError(
            f"the checkpoint {str(origin.checkpoint)!r} is at step {step}, and steps is {steps}; "
            "nothing is left to do. Give more steps"
        )
    return origin


def _find(run_dir: str | None, resume_from: str | None) -> Origin:
    named = None if run_dir is None else Path(run_dir)
    fresh = named or default_folder(new_run_id())
    if resume_from is None:
        return Origin(fresh, None, fresh)
    given = Path(resume_from)
    if _ended_early(given):
        begun = read_generation(given)
        if begun and begun.origin and folder_of(Path(begun.origin)) != Path(begun.origin):
            checkpoint = find_checkpoint(begun.origin)
            return Origin(named or given, checkpoint, home_of(checkpoint))
        logger.warning("the run in %s has no checkpoint yet; it begins at step 0 again", given)
        return Origin(named or given, None, given)
    checkpoint = find_checkpoint(given)
    home = home_of(checkpoint)
    if named is None and checkpoint.parent.name == "checkpoints":
        return Origin(checkpoint.parent.parent, checkpoint, home)
    return Origin(fresh, checkpoint, home)


def _ended_early(folder: Path) -> bool:
    """Whether a run in this folder ended before its first checkpoint."""
    has_run = read_generation(folder) is not None or (folder / "metrics.jsonl").exists()
    return has_run and not newest_first(folder)
