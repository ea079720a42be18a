"""Checkpoints: folders that are whole or not there.

What is in a folder is for its maker to say. ``checkpoint.json`` in it has the size of every file,
by which a copy that was cut short is found, and what the run noted. A folder gets its name when all
files are on the disk. There are no checksums: to read all weights at each save takes minutes, and
bytes that a disk changed are the file system's to notice.
"""

import json
import logging
import os
import shutil
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agl.errors import AglError, AlgorithmError, ConfigError
from agl_runs.files import make_private_folder, sync, write_whole

logger = logging.getLogger("agl.learning")

MANIFEST = "checkpoint.json"
ASIDE = "aside-"
"""What the names of those begin with that their run went back behind."""


@dataclass(frozen=True)
class Progress:
    """Where a run is; JSON values only."""

    step: int
    version: int
    """Of the weights."""
    totals: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the summary adds up."""
    taken: int = 0
    """How many tasks of their order were taken."""
    rewards: list[float | None] = field(default_factory=list[float | None])
    """Mean per step, from the first one on."""
    val_rewards: list[tuple[int, float | None]] = field(
        default_factory=list[tuple[int, float | None]]
    )
    """(step, mean) per evaluation."""
    start: dict[str, Any] = field(default_factory=dict[str, Any])
    """The start that wrote it: a ``Generation``."""
    made: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The versions of the model that are to be found elsewhere; of each a ``Version``."""
    hooks: dict[str, Any] = field(default_factory=dict[str, Any])
    """What hooks keep, by their classes and options."""
    ended: str = ""
    """Which hook asked the run to end, and why; "" where none did."""
    idle_steps: int = 0
    """How many steps in a row have trained nothing."""
    is_solved: bool = False
    """Whether that was as nothing was left to learn."""

    @classmethod
    def of(cls, checkpoint: Path) -> "Progress":
        """That of a checkpoint.

        Raises:
            ConfigError: It is whole, and none of a run in progress: a version of a model, say.
        """
        try:
            record = read_note(checkpoint)
            record["val_rewards"] = [(step, reward) for step, reward in record["val_rewards"]]
            return cls(**record)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{str(checkpoint)!r} is no checkpoint of a run that can go on ({error!r}); "
                "expected a folder of checkpoints/ that an algorithm like grpo has made"
            ) from error


@contextmanager
def making(folder: Path, note: Mapping[str, Any] | Progress) -> Generator[Path]:
    """A block that fills a checkpoint.

    Args:
        folder: Gets its name when the block has ended and all of it is on the disk; one that is
            there already is replaced then. After a kill it is whole, or not there.
        note: What ``read_note`` gives back; JSON values. Changes in the block count.

    Yields:
        The folder to write into.

    Raises:
        AlgorithmError: It could not be written, as the disk is full, say; nothing is left of it.
            Other errors of ours are raised as they are.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    make_private_folder(partial.parent)
    partial.mkdir()
    try:
        yield partial
        files = {
            path.relative_to(partial).as_posix(): {"bytes": path.stat().st_size}
            for path in sorted(partial.rglob("*"))
            if path.is_file()
        }
        said = asdict(note) if isinstance(note, Progress) else dict(note)
        text = json.dumps({"note": said, "files": files}, indent=1)
        (partial / MANIFEST).write_text(text, "utf-8")
        for path in (*sorted(partial.rglob("*")), partial):
            sync(path)
    except BaseException as error:
        free = shutil.disk_usage(partial.parent).free
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, AglError) or not isinstance(error, Exception):
            raise
        raise AlgorithmError(
            f"the checkpoint {str(folder)!r} could not be written, with {free / 1e6:.1f} MB left "
            f"on its disk: {type(error).__name__}: {error}. Those before it are whole"
        ) from error
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(partial, folder)
    sync(folder.parent)


def home_of(checkpoint: Path) -> Path:
    """The folder that keeps what the checkpoints of a run need, beside them.

    Example:
        ``RUN`` of ``RUN/checkpoints/step-3``; and of ``RUN/checkpoints/step-3/asker``, which is the
        part of one of several models (``agl_learning.team``), ``RUN/asker``.
    """
    # Not resolved: checkpoints may lie on another disk, behind a link.
    whole = checkpoint.absolute()
    for place in (whole, *whole.parents):
        if place.parent.name == "checkpoints":
            return place.parent.parent / whole.relative_to(place)
    return whole.parent.parent


def read_note(checkpoint: Path) -> dict[str, Any]:
    """What its maker noted about a checkpoint."""
    return json.loads((checkpoint / MANIFEST).read_text("utf-8"))["note"]


def note_again(checkpoint: Path, note: Mapping[str, Any]) -> None:
    """Change what is noted about a whole checkpoint, which stays whole whatever happens."""
    record = json.loads((checkpoint / MANIFEST).read_text("utf-8"))
    record["note"].update(note)
    write_whole(checkpoint / MANIFEST, json.dumps(record, indent=1))


def damage(checkpoint: Path) -> str:
    """What is wrong with a checkpoint; "" when every file is there, and as long as it was."""
    try:
        record = json.loads((checkpoint / MANIFEST).read_text("utf-8"))
        for name, known in record["files"].items():
            if name.endswith(".md"):  # a model card, in which people write
                continue
            path = checkpoint / name
            if not path.is_file():
                return f"{name} is missing"
            if (size := path.stat().st_size) != known["bytes"]:
                return f"{name} has {size} bytes; it was written with {known['bytes']}"
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MANIFEST} cannot be read: {type(error).__name__}: {error}"
    return ""


def find_checkpoint(path: str | os.PathLike[str]) -> Path:
    """The checkpoint that ``path`` is, or the newest whole one of a run's folder.

    Raises:
        ConfigError: There is none, or the one that was named is damaged.
    """
    root = Path(path)
    if (root / MANIFEST).is_file():
        if found := damage(root):
            raise ConfigError(
                f"the checkpoint {str(root)!r} is damaged: {found}. Resume from another one"
            )
        return root
    if newest := next(whole_checkpoints(root), None):
        return newest
    damaged = [(folder.name, why) for folder in newest_first(root) if (why := damage(folder))]
    if damaged:
        name, why = damaged[0]
        raise ConfigError(
            f"{len(damaged)} checkpoints in {str(root)!r} are damaged, and no other is whole; of "
            f"{name}, {why}. Put one back from a copy; or remove those folders, and the run trains "
            "its steps once more from the beginning, with the rollouts that it had"
        )
    raise ConfigError(
        f"no checkpoint to resume from in {str(root)!r}; expected a whole folder with "
        f"{MANIFEST}, or a run's folder with checkpoints/step-*"
    )


def whole_checkpoints(root: Path) -> Iterator[Path]:
    """Those of a run's folder, newest first."""
    for folder in newest_first(root):
        if not (found := damage(folder)):
            yield folder
        elif folder.exists():  # else another process has just removed it
            _warn_of_damage(folder, found)


@cache
def _warn_of_damage(folder: Path, found: str) -> None:
    """Once in a process: each save looks at all of them."""
    logger.warning("the checkpoint %s is damaged and is left out: %s", folder, found)


def name_of(step: int) -> str:
    """How the folder of its checkpoint is called."""
    return f"step-{step:06d}"


def set_aside(root: Path, step: int) -> None:
    """Give those after a step another name: the run has gone back behind them, and goes on."""
    for folder in newest_first(root):
        if int(folder.name.removeprefix("step-")) > step:
            number = 1
            while (aside := folder.with_name(f"{ASIDE}{number}-{folder.name}")).exists():
                number += 1
            os.replace(folder, aside)
            logger.warning("the run goes on after step %d; %s is %s now", step, folder, aside.name)


def best_checkpoint(
    root: Path, val_rewards: Sequence[tuple[int, float | None]]
) -> tuple[Path, float] | None:
    """The whole one with the best held-out reward, and that; of equals the newest."""
    rewards = {name_of(step): reward for step, reward in val_rewards if reward is not None}
    known = [(at, rewards[at.name]) for at in whole_checkpoints(root) if at.name in rewards]
    return max(known, key=lambda one: one[1], default=None)


def remove_older(
    root: Path, keep_last: int, val_rewards: Sequence[tuple[int, float | None]]
) -> None:
    """Keep so many of the newest ones, and the best; damaged ones stay, and do not count.

    After a kill each is as it was, or not there. The newest one must be whole.
    """
    best = best_checkpoint(root, val_rewards)
    for folder in [*whole_checkpoints(root)][keep_last:]:
        if best is None or folder != best[0]:
            os.replace(folder, folder.with_name(f".{folder.name}.gone"))
    sync(root / "checkpoints")
    remove_leftovers(root, "gone")


def remove_leftovers(root: Path, *kinds: str) -> None:
    """Remove checkpoints that were to be removed (``gone``), or were not whole (``partial``)."""
    for kind in kinds:
        for left in (root / "checkpoints").glob(f".step-*.{kind}"):
            shutil.rmtree(left, ignore_errors=True)


def check_writable(root: Path) -> None:
    """Refuse a run's folder where nothing could be saved after rollouts, by a ConfigError."""
    for folder in (root / name for name in ("checkpoints", "iterations", "versions")):
        try:
            if os.path.lexists(folder):  # one that is not there is made later
                TemporaryDirectory(prefix=".probe-", dir=folder).cleanup()
        except OSError as error:
            raise ConfigError(
                f"nothing can be written into {str(folder)!r}, where the run is to save: {error}. "
                "Have it be a folder into which this user may write, or give another run_dir"
            ) from error


def newest_first(root: Path) -> list[Path]:
    """All of a run's folder, whole or not; a copy with more in its name is whoever's made it."""
    found = (root / "checkpoints").glob("step-*")
    numbered = {int(at.name[5:]): at for at in found if at.name[5:].isdecimal()}
    return [numbered[step] for step in sorted(numbered, reverse=True)]
