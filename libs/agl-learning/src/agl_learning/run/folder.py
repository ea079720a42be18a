"""The folder of a run: who holds it, which run it is, and which start of it this is.

A run is a folder. Each start of it is a generation, from 1. Rollouts carry both in their metadata
(``run``, ``generation``), and so do accounts. A start goes on from a checkpoint; what came after it
does not count any more, until it is done again.
"""

import json
import os
import secrets
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agl.errors import ConfigError
from agl.store.base import LightningStore
from agl.types import Document
from agl_records.ledger.documents import LOST, each_part, put_parts
from agl_records.types import LedgerPart
from agl_runs.files import write_whole
from agl_runs.folders import FILE, hold_folder
from agl_runs.rollouts import cancel_leftovers
from agl_runs.store import RUN_ID

if TYPE_CHECKING:
    from agl.algorithm.base import Algorithm

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
    shape: dict[str, Any] = field(default_factory=dict[str, Any])
    """On what its results depend: ``options`` of the algorithm, all ``others``, and its ``folder``
    then; JSON values."""
    earlier: list[tuple[int, dict[str, Any]]] = field(default_factory=lambda: [])
    """Shapes that starts before had, without ``others``, each with the last such start."""

    @property
    def metadata(self) -> dict[str, Any]:
        """For rollouts."""
        return {"run": self.run, "generation": self.number}

    def shape_at(self, start: int) -> dict[str, Any]:
        """The shape of this start, or of one before."""
        return next((shape for last, shape in self.earlier if start <= last), self.shape)

    def earlier_than(self, shape: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
        """What is ``earlier`` for the next start."""
        is_same = shape["options"] == self.shape.get("options")
        return [*self.earlier, *([] if is_same else [(self.number, {**self.shape, "others": {}})])]


def hold_run(folder: str | os.PathLike[str]) -> AbstractContextManager[bool]:
    """A block in which no other process uses the run in a folder; see ``hold_folder``."""
    return hold_folder(Path(folder), LOCK)


def read_generation(folder: str | os.PathLike[str]) -> Generation | None:
    """The newest start of the run in a folder; None when the folder has no run.

    Raises:
        ConfigError: The file that says so is damaged.
    """
    path = Path(folder) / FILE
    try:
        record = json.loads(path.read_text("utf-8"))
        number = record.pop("generation")
        return Generation(**{**record, "number": number})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path}: expected the id of a run and the number of its starts; this cannot be read "
            f"({error!r}). Put it back from a copy, or give another run_dir"
        ) from error


def write_generation(folder: str | os.PathLike[str], now: Generation) -> None:
    """Write what ``read_generation`` gives back."""
    record = asdict(now)
    write_whole(Path(folder) / FILE, json.dumps({**record, "generation": record.pop("number")}))


def next_generation(
    folder: str | os.PathLike[str], begun: "Algorithm | None" = None, /, **about: Any
) -> Generation:
    """The next start of the run in a folder, which is not written yet.

    An algorithm has the run and the start from its trainer; without one, and where the folder is
    another run's already, the folder counts. Fields of ``Generation`` that are not given by
    ``about`` stay as they are.

    Raises:
        ConfigError: See ``read_generation``.
    """
    before, run = read_generation(folder), begun and begun.get_run()
    if run and (before is None or before.run == run[0]):
        about = {"run": run[0], "number": run[1], **about}
    before = before or Generation(secrets.token_hex(6), 0)
    return replace(before, **{"number": before.number + 1, **about})


def begin_generation(
    folder: str | os.PathLike[str], begun: "Algorithm | None" = None, /, **about: Any
) -> Generation:
    """Count another start of the run in a folder; see ``next_generation``."""
    now = next_generation(folder, begun, **about)
    write_generation(folder, now)
    return now


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


def check_own(folder: str | os.PathLike[str], algorithm: str) -> None:
    """Refuse the same, and metrics that no file says the run of: a new run would empty them.

    Raises:
        ConfigError: It has one of the two.
    """
    check_algorithm(folder, algorithm)
    if read_generation(folder) is None and os.path.exists(os.path.join(folder, "metrics.jsonl")):
        raise ConfigError(
            f"{os.fspath(folder)!r} holds metrics.jsonl, and no {FILE} that says of which run. Put "
            "that back from a copy, or give another run_dir"
        )


async def cancel_dead_starts(
    store: LightningStore, folder: str | os.PathLike[str], *others: str | os.PathLike[str]
) -> None:
    """Cancel what dead starts of the run in a folder left in the store, before runners claim it.

    ``others`` are folders of runs whose checkpoints it goes on from; those that live keep theirs.

    Raises:
        ConfigError: Another process uses the folder.
    """
    first = _resolve(folder)
    for each in dict.fromkeys((first, *map(_resolve, others))):
        generation = read_generation(each)
        if generation is None:
            continue
        with ExitStack() as stack:
            try:
                stack.enter_context(hold_run(each))
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
