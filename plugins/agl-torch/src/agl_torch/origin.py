"""Where a run begins: its folder, and the checkpoint that it goes on from, if there is one.

The trainer asks before runners are forked: nothing here imports torch unless there is a checkpoint.
"""

import json
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agl.errors import ConfigError, install_line
from agl_learning.generations import read_generation

if TYPE_CHECKING:
    from agl_torch.grpo import GRPO

logger = logging.getLogger("agl.torch")

MODEL_NAME = "policy"
"""What the gateway calls the model that is trained."""


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

    def check_folder(self) -> None:
        """For a run that does not go on in its folder: there must be none, or one to begin again.

        Raises:
            ConfigError: Another run is there; metrics and accounts of the two would be mixed.
        """
        if not (self.folder / "metrics.jsonl").exists():
            return
        begun = read_generation(self.folder)
        place = None if begun is None else begun.origin
        if place is None or place != self.other_run:
            which = "" if place is None else f", which began from {place!r}"
            raise ConfigError(
                f"GRPO: {str(self.folder)!r} holds another run already{which}. Give another "
                f"run_dir, or continue that run with resume_from={str(self.folder)!r}"
            )

    def reference(self) -> Path:
        """Where the start of the run is, from which its weights must not go far.

        Raises:
            ConfigError: It is not there.
        """
        for found in (self.folder, self.home):
            if (found / "reference").is_dir():
                return found / "reference"
        raise ConfigError(
            f"GRPO: kl_coefficient compares with the model that the run began with, and neither "
            f"{str(self.folder)!r} nor {str(self.home)!r} has the folder 'reference'. Set "
            "kl_coefficient to 0, or start anew"
        )


def find_origin(options: "GRPO") -> Origin:
    """Check everything about a start that can be said before a model is loaded.

    Raises:
        ConfigError: There is no gateway, or it has a model of our name; checkpoint or folder are
            not usable, or nothing is left to do.
    """
    gateway = options.get_llm_proxy()
    if gateway is None:
        raise ConfigError(
            f"GRPO needs a gateway that records model calls. Run: {install_line('agl-gateway')}, "
            "or pass Trainer(llm_proxy=...)"
        )
    gateway.check_free(MODEL_NAME)
    origin = _find(options)
    if options.resume_from is None or not origin.is_same_run:
        origin.check_folder()
    if origin.checkpoint is not None:
        from agl_torch.checkpoint import STATE

        step = json.loads((origin.checkpoint / STATE).read_text("utf-8"))["progress"]["step"]
        if step >= options.steps:
            raise ConfigError(
                f"GRPO: the checkpoint {str(origin.checkpoint)!r} is at step {step}, and steps is "
                f"{options.steps}; nothing is left to do. Give more steps"
            )
        if options.kl_coefficient:
            origin.reference()
    return origin


def _find(options: "GRPO") -> Origin:
    named = None if options.run_dir is None else Path(options.run_dir)
    fresh = named or Path("agl-runs").absolute() / time.strftime("grpo-%Y%m%d-%H%M%S")
    if options.resume_from is None:
        return Origin(fresh, None, fresh)
    given = Path(options.resume_from)
    if _ended_early(given):
        logger.warning("the run in %s has no checkpoint yet; it begins at step 0 again", given)
        return Origin(named or given, None, given)
    from agl_torch.checkpoint import find_checkpoint

    checkpoint = find_checkpoint(given)
    home = checkpoint.resolve().parent.parent
    if named is None and checkpoint.parent.name == "checkpoints":
        return Origin(checkpoint.parent.parent, checkpoint, home)
    return Origin(fresh, checkpoint, home)


def _ended_early(folder: Path) -> bool:
    """Whether a run in this folder ended before its first checkpoint."""
    has_run = read_generation(folder) is not None or (folder / "metrics.jsonl").exists()
    return has_run and not any((folder / "checkpoints").glob("step-*"))
