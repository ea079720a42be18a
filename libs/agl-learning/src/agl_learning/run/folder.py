"""The folder of a run: who holds it, which run it is, and which start of it this is.

A run is a folder. Each start of it is a generation, from 1. Rollouts carry both in their metadata
(``run``, ``generation``), and so do accounts. A start goes on from a checkpoint; what came after it
does not count any more, until it is done again.
"""

import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agl.errors import ConfigError
from agl.store.base import LightningStore
from agl.types import Document
from agl_records.ledger.documents import LOST, each_part, put_parts
from agl_records.types import LedgerPart
from agl_runs.differences import options_that_shape
from agl_runs.files import make_private_folder, write_whole
from agl_runs.folders import FILE
from agl_runs.rollouts import cancel_leftovers
from agl_runs.store import RUN_ID
from agl_sqlite.lockfile import HeldError, LockFile

if TYPE_CHECKING:
    from agl.algorithm.base import Algorithm

logger = logging.getLogger("agl.learning")

LOCK = "run.lock"


@dataclass(frozen=True)
class Generation:
    """One start of a run."""

    run: str
    """Id of the run."""
    number: int
    """From 1."""
    origin: str | None = None
    """What the run began from: a checkpoint, or the folder, of another run; None if it began at
    step 0 by itself."""
    algorithm: str | None = None
    """Whose run it is; None where nobody said."""
    identity: dict[str, Any] = field(default_factory=dict[str, Any])
    """What must not change when the run goes on; JSON values."""
    shape: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """On what its results depend: ``options`` of the algorithm, and all ``others``."""

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
        return generation_of({**record, "number": record.pop("generation")})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path}: expected the id of a run and the number of its starts; this cannot be read "
            f"({error!r}). Put it back from a copy, or give another run_dir"
        ) from error


def generation_of(record: Mapping[str, Any]) -> Generation:
    """What ``asdict`` was made of, out of JSON."""
    return Generation(
        str(record["run"]),
        int(record["number"]),
        record.get("origin"),
        record.get("algorithm"),
        dict(record.get("identity") or {}),
        dict(record.get("shape") or {}),
    )


def write_generation(folder: str | os.PathLike[str], now: Generation) -> None:
    """Write what ``read_generation`` gives back."""
    record = asdict(now)
    write_whole(Path(folder) / FILE, json.dumps({**record, "generation": record.pop("number")}))


def next_generation(
    folder: str | os.PathLike[str], run: str | None = None, number: int | None = None, **about: Any
) -> Generation:
    """The next start of the run in a folder, which is not written yet.

    Args:
        folder: Of the run.
        run: Its id, where that stands elsewhere; None keeps the one in the folder, or makes one.
        number: Of this start, where that stands elsewhere; None is the next one of the folder.
        about: Further fields of ``Generation``; those that are not given stay as they are.

    Raises:
        ConfigError: See ``read_generation``.
    """
    before = read_generation(folder) or Generation(secrets.token_hex(6), 0)
    return replace(before, run=run or before.run, number=number or before.number + 1, **about)


def begin_generation(folder: str | os.PathLike[str], **about: Any) -> Generation:
    """Count another start of the run in a folder; see ``next_generation``."""
    now = next_generation(folder, **about)
    write_generation(folder, now)
    return now


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


def check_identity(
    owner: str, now: Mapping[str, Any], folder: Path, before: Mapping[str, Any], is_forced: bool
) -> None:
    """Refuse to continue a run as what it was not.

    Args:
        owner: What messages begin with.
        now: What must not change.
        folder: Of the run.
        before: What it was, as far as it was written down.
        is_forced: A warning will do, but for another algorithm.

    Raises:
        ConfigError: It names what differs.
    """
    for name, value in now.items():
        if name not in before or before[name] == value:
            continue
        text = (
            f"{owner}: {str(folder)!r} holds a run with another {name}: {before[name]!r} then, "
            f"{value!r} now"
        )
        if name == "algorithm" or not is_forced:
            raise ConfigError(
                f"{text}. Continue it with what it had, give another run_dir, or go on all the "
                "same with force=True (agl run --force)"
            )
        logger.warning("%s, as it is forced to", text)


def shape_of(algorithm: "Algorithm", others: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """On what the results of a start depend.

    Args:
        algorithm: Whose options they are.
        others: All else; see ``agl.algorithm.base.RunContext``.
    """
    return {"options": options_that_shape(algorithm), "others": dict(others)}


def shape_changes(
    before: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """What differs between two shapes, for people; nothing where one of them is empty."""
    if not before or not now:
        return []
    found = _changed(before["options"], now["options"])
    if before["others"] and now["others"]:  # without a trainer nobody knows
        found += _changed(before["others"], now["others"])
    return found


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    names = dict.fromkeys((*before, *now))
    if ("agent" in before) != ("agent" in now):  # one was begun from Python, which records less
        names = [name for name in names if name in before and name in now]
    return [
        f"{name} is {now.get(name)!r}, was {before.get(name)!r}"
        for name in names
        if before.get(name) != now.get(name)
        and not (name.startswith("version of ") and name not in before)  # a plugin more
    ]


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


async def mark_lost(store: LightningStore, run: str, is_lost: Callable[[LedgerPart], bool]) -> None:
    """Have accounts of a run not count any more: a start went back behind them."""
    lost = [
        part.model_copy(update={"lost": True})
        async for part in each_part(store, run=run, lost=False)
        if not part.problem and is_lost(part)
    ]
    await put_parts(store, lost)
    if lost:
        body = {RUN_ID: run, "time": time.time()}
        await store.put_documents([Document(kind=LOST, key=run, body=body)])
