"""The starts of a run: its id, which start this is, and what earlier ones left behind.

A run is a folder. Each start of it is a generation, from 1; a run that was killed and goes on is
the next one. Rollouts carry both in their metadata (``run``, ``generation``), and so do accounts.

A run that goes on from a checkpoint goes back behind what came after that: the way that led to the
checkpoint is its branch, the list of (generation, last step of it that counts).
"""

import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agl.errors import ConfigError
from agl.store.base import LightningStore
from agl.types import Document
from agl_records.ledger.documents import LOST, each_part, put_parts
from agl_records.types import LedgerPart
from agl_runs.files import make_private_folder, write_whole
from agl_runs.folders import FILE
from agl_runs.rollouts import cancel_leftovers
from agl_runs.store import RUN_ID
from agl_sqlite.lockfile import HeldError, LockFile

if TYPE_CHECKING:
    from agl.algorithm.base import Algorithm

logger = logging.getLogger("agl.learning")

LOCK = "run.lock"
Branch = Sequence[tuple[int, int]]
"""(generation, last step of it that counts), oldest first."""


@dataclass(frozen=True)
class Generation:
    """One start of a run."""

    run: str
    """Id of the run."""
    number: int
    """From 1."""
    branch: tuple[tuple[int, int], ...] = ()
    """The way to the checkpoint that it went on from; () if it began anew."""
    origin: str | None = None
    """What the run began from: a checkpoint, or the folder, of another run; None if it began at
    step 0 by itself."""
    algorithm: str | None = None
    """Whose run it is; None where nobody said."""

    def leads_to(self, branch: Branch) -> bool:
        """Whether what this way leads to belongs to this start, or to what it went on from."""
        last = dict(self.branch)
        return all(start == self.number or step <= last.get(start, -1) for start, step in branch)

    @property
    def metadata(self) -> dict[str, Any]:
        """For rollouts."""
        return {"run": self.run, "generation": self.number}


@contextmanager
def hold_run(folder: str | os.PathLike[str]) -> Generator[None]:
    """A block in which no other process uses the run in a folder.

    The system ends it when the process dies. A process forked from this one does not hold the run.

    Args:
        folder: Of the run; made when it is not there.

    Raises:
        ConfigError: Another run has it; the message says which process.
    """
    path = Path(folder)
    make_private_folder(path)
    try:
        lock = LockFile(path / LOCK)
    except HeldError as held:
        raise ConfigError(
            f"the run in {str(path)!r} is in use by {held}: two in one folder would mix their "
            "metrics, checkpoints and accounts. Stop that one or wait for its end, or give "
            "another run_dir"
        ) from None
    except OSError as error:
        logger.warning(
            "cannot lock %s (%s): nothing keeps a second process out of this run", path, error
        )
        yield
        return
    try:
        yield
    finally:
        lock.release()


def read_generation(folder: str | os.PathLike[str]) -> Generation | None:
    """The newest start of the run in a folder; None when the folder has no run.

    Raises:
        ConfigError: The file that says so is damaged.
    """
    path = Path(folder) / FILE
    try:
        record = json.loads(path.read_text("utf-8"))
        branch = tuple((int(start), int(step)) for start, step in record["branch"])
        origin, algorithm = record["origin"], record.get("algorithm")
        return Generation(str(record["run"]), int(record["generation"]), branch, origin, algorithm)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}: expected the id of a run and the number of its starts; this cannot be read "
            f"({error!r}). Put it back from a copy, or give another run_dir"
        ) from error


def begin_generation(
    folder: str | os.PathLike[str],
    run: str | None = None,
    branch: Branch = (),
    origin: str | None = None,
    algorithm: str | None = None,
    number: int | None = None,
) -> Generation:
    """Count another start of the run in a folder.

    Args:
        folder: Of the run.
        run: Its id, where that stands elsewhere; None keeps the one in the folder, or makes one.
        branch: Of the checkpoint that it goes on from.
        origin: Where a run that begins anew begins, see ``Generation``; one that goes on keeps its
            own.
        algorithm: Whose run it is; None keeps what the folder says.
        number: Of this start, where that stands elsewhere; None is the next one of the folder.

    Raises:
        ConfigError: See ``read_generation``.
    """
    before = read_generation(folder) or Generation(secrets.token_hex(6), 0)
    now = Generation(
        run or before.run,
        number or before.number + 1,
        tuple(branch),
        before.origin if branch else origin,
        algorithm or before.algorithm,
    )
    write_generation(folder, now)
    return now


def write_generation(folder: str | os.PathLike[str], now: Generation) -> None:
    """Write what ``read_generation`` gives back."""
    record = {
        "run": now.run,
        "generation": now.number,
        "branch": now.branch,
        "origin": now.origin,
        "algorithm": now.algorithm,
    }
    write_whole(Path(folder) / FILE, json.dumps(record))


def begun_by_trainer(algorithm: "Algorithm", folder: str | os.PathLike[str]) -> dict[str, Any]:
    """``run`` and ``number`` of a start, as the trainer has them; empty where it has no say.

    Args:
        algorithm: That the trainer runs.
        folder: Of the run; one that is not the trainer's, or is another run's already, counts its
            own starts.
    """
    run, own = algorithm.get_run(), algorithm.get_run_folder()
    if run is None or own is None or _resolve(own) != _resolve(folder):
        return {}
    before = read_generation(folder)
    if before is not None and before.run != run[0]:
        return {}
    return {"run": run[0], "number": run[1]}


def check_algorithm(folder: str | os.PathLike[str], algorithm: str) -> None:
    """Refuse a folder with a run of another algorithm: metrics and checkpoints would be mixed.

    Raises:
        ConfigError: It has one.
    """
    before = read_generation(folder)
    if before is not None and before.algorithm not in (None, algorithm):
        raise ConfigError(
            f"{os.fspath(folder)!r} holds a run of {before.algorithm!r}, and this is "
            f"{algorithm!r}. Give another run_dir"
        )


async def cancel_dead_starts(
    store: LightningStore, folder: str | os.PathLike[str], *others: str | os.PathLike[str]
) -> None:
    """Cancel what starts that are dead left queued or under way, before runners claim it.

    Args:
        store: Where it is.
        folder: Of the run that is to start.
        others: Folders of runs whose checkpoints it goes on from; those that live keep theirs.

    Raises:
        ConfigError: Another process uses the folder.
    """
    first = _resolve(folder)
    for each in dict.fromkeys((first, *map(_resolve, others))):
        generation = read_generation(each)
        if generation is None:
            continue
        with ExitStack() as held:
            try:
                held.enter_context(hold_run(each))
            except ConfigError:
                if each == first:
                    raise
                continue
            await cancel_leftovers(store, generation.run)


def _resolve(folder: str | os.PathLike[str]) -> Path:
    return Path(folder).resolve()


def branch_to(before: Generation | None, step: int) -> list[tuple[int, int]]:
    """The way to a checkpoint of which only the step is known.

    Args:
        before: The last start; it made the checkpoint, or what it went on from did.
        step: Of the checkpoint; 0 where there is none.
    """
    way: list[tuple[int, int]] = []
    if before is None or step == 0:
        return way
    for start, last in (*before.branch, (before.number, step)):
        way.append((start, min(last, step)))
        if last >= step:
            break
    return way


async def keep_branch(store: LightningStore, run: str, branch: Branch) -> None:
    """Mark as lost the accounts of a run beside its branch, and as counting those on it."""
    last = dict(branch)
    await mark_lost(store, run, lambda part: (part.step or 0) > last.get(part.generation, -1))


async def mark_lost(store: LightningStore, run: str, is_lost: Callable[[LedgerPart], bool]) -> None:
    """Mark accounts of a run as lost, or as counting again."""
    changed: list[LedgerPart] = []
    async for part in each_part(store, run=run):
        lost = is_lost(part)
        if lost != part.lost and not part.problem:
            changed.append(part.model_copy(update={"lost": lost}))
    await put_parts(store, changed)
    if changed:
        body = {RUN_ID: run, "time": time.time()}
        await store.put_documents([Document(kind=LOST, key=run, body=body)])
