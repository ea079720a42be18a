"""The folder of a run: its name, what it says of the run, and who holds it."""

import contextlib
import json
import logging
import os
import platform
import secrets
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from agl.errors import ConfigError
from agl_runs.files import make_private_folder
from agl_runs.records import Run, RunGeneration, RunId
from agl_sqlite.lockfile import HeldError, LockFile, is_held

logger = logging.getLogger("agl.runs")

RUNS: Final = "agl-runs"
"""Where runs get their folders that are given none, in the working directory."""
FILE: Final = "run.json"
"""What algorithms write down of the run in its folder: its id as ``run``, and the number of its
starts as ``generation``."""
STORE: Final = "store.db"
STORES: Final = (STORE, "store.postgres")
"""In a run's folder: its store, which is a file, or the folder of a PostgreSQL of its own."""
CONFIG: Final = "config.yaml"
"""In a run's folder: the configuration with all values in force, without secrets."""
LOCK: Final = "trainer.lock"
_CLOCKS_APART_SECONDS: Final = 300.0
"""The clock of this machine may have been set by so much since."""
UNDER_WAY: Final = set[str]()  # keys of the starts that are under way in this process
_check = TypeAdapter(RunId).validate_python


def new_run_id() -> str:
    """An id that names the moment, in UTC, and ends with what tells runs of one second apart."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"


def check_run_id(run_id: str) -> None:
    """Refuse an id that cannot name a folder.

    Raises:
        ConfigError: It cannot.
    """
    try:
        _check(run_id)
    except ValidationError:
        raise ConfigError(
            f"run {run_id!r}: the id of a run names its folder, too: expected up to 100 letters, "
            "digits, dots, dashes and underscores, the first of them a letter or a digit"
        ) from None


def default_folder(run_id: str) -> Path:
    """The folder of a run that is given none; absolute, for an agent may change directory."""
    return (Path(RUNS) / run_id).absolute()


def known_run(folder: Path) -> tuple[str, int] | None:
    """Id and number of starts of the run that an algorithm has begun in a folder.

    None if there is no such run, or if its file is damaged, which the algorithm reports.
    """
    try:
        found: Any = json.loads((folder / FILE).read_text("utf-8"))
        return str(found["run"]), int(found["generation"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextlib.contextmanager
def hold_folder(folder: Path, lock_name: str = LOCK) -> Generator[bool]:
    """A block in which no other process uses the run in a folder; False where none can be locked.

    The system ends it when the process dies. A process forked from this one does not hold the run.

    Args:
        folder: Made if it is not there, and removed if nothing was written into it.
        lock_name: Of the file in it: a trainer has one, and an algorithm another.

    Raises:
        ConfigError: Another one has it; the message says which process.
    """
    make_private_folder(folder)
    try:
        lock = LockFile(folder / lock_name)
    except HeldError as error:
        raise ConfigError(
            f"the run in {str(folder)!r} is in use by {error}: two in one folder would mix their "
            "metrics, checkpoints and accounts. Stop that one or wait for its end, or give another "
            "run or run_dir"
        ) from None
    except OSError as error:  # a file system without locks; ``is_alive`` goes by the process, then
        logger.warning("cannot lock %s (%s): nothing keeps a second process out", folder, error)
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
        with contextlib.suppress(OSError):
            folder.rmdir()


def machine_id() -> str | None:
    """What tells this machine from others of its name; None where the system has no such id."""
    with contextlib.suppress(OSError):
        return Path("/etc/machine-id").read_text("ascii").strip() or None
    return None


def is_here(start: RunGeneration) -> bool:
    """Whether a start was made on this machine, as far as name and id tell."""
    return start.host == platform.node() and start.machine in (None, machine_id())


def is_alive(run: Run) -> bool:
    """Whether the last start of a run is under way, as far as this machine can tell.

    The lock in its folder says so; where there is none, its process. Not to be asked of a folder
    that this process has just taken: its own lock would be found.
    """
    if run.status != "running" or not run.generations:
        return False
    last = run.generations[-1]
    if not is_here(last) or last.pid is None:
        return True  # only that machine knows
    if last.pid == os.getpid():  # whose last word the store may have missed
        return last.key in UNDER_WAY
    # There is no lock where the run was not named; a trainer that is killed leaves it, free.
    if run.folder is not None:
        with contextlib.suppress(OSError):  # none, or a file system without locks
            return is_held(Path(run.folder) / LOCK)
    return _is_running(last.pid, last.start_time)


def _is_running(pid: int, start_time: float) -> bool:
    import psutil

    try:
        process = psutil.Process(pid)
        # A later process may have the number.
        is_later = process.create_time() > start_time + _CLOCKS_APART_SECONDS
        return not is_later and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def shown_status(run: Run) -> str:
    """The status, with ``died`` for a run whose process is gone."""
    return run.status if run.status != "running" or is_alive(run) else "died"
