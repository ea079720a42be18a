"""The record of a run in its store, from before anything starts to after everything has ended."""

import asyncio
import logging
import os
import platform
import secrets
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from agl.agent.base import LitAgent
from agl.algorithm.base import Algorithm
from agl.errors import (
    AlgorithmError,
    ConfigError,
    InvalidTransitionError,
    NotSupportedError,
    PluginError,
    ReplacedError,
    RunError,
)
from agl.plugins.build import Given
from agl.plugins.hooks import HookCaller
from agl.plugins.recorder import Recorder, Recording, RunRequest
from agl.store.base import LightningStore
from agl.types import Dataset
from agl.utils.secrets import hide
from agl_runs import folders, records
from agl_runs.description import describe_run
from agl_runs.differences import differences, what_shapes
from agl_runs.files import make_private_folder
from agl_runs.finding import innermost, placed, stores_here
from agl_runs.records import Run, RunOutcome, RunStart
from agl_runs.result import sum_up
from agl_runs.rollouts import RunStore, cancel_leftovers, check_alone
from agl_runs.store import begin_run, end_run, get_run, query_runs
from agl_runs.user_code import place_in

logger = logging.getLogger("agl.runs")

T = TypeVar("T")

LAST_WORD_SECONDS = 10.0
"""So long it is tried to tell a store how a run ended."""


@dataclass
class RecordedStart(Recording):
    """One start of a run that has a record."""

    run_id: str = ""
    generation: int = 1
    before: Run | None = None
    """As it was stored."""
    record: Run | None = None
    """As it was begun, and at its end as it ended; None where the store keeps none."""
    is_kept: bool = True
    """Whether the store outlives this process."""
    what_shapes: dict[str, Any] = field(default_factory=dict[str, Any])
    """See ``agl_runs.differences``."""
    _store: RunStore | None = None

    @property
    def place(self) -> Path:
        """Its folder."""
        assert self.folder is not None
        return self.folder

    @property
    def about(self) -> dict[str, Any]:
        names = "folder", "run_id", "generation", "what_shapes"
        return {name: getattr(self, name) for name in names}

    def store_of_algorithm(self, store: LightningStore) -> LightningStore:
        self._store = RunStore(store, self.run_id, self.generation)
        return self._store

    def replaced(self) -> ReplacedError | None:
        return None if self._store is None else self._store.refusal

    @property
    def can_go_on(self) -> bool:
        """Whether there is something to go on with after this process."""
        return self.is_kept or folders.known_run(self.place) is not None

    @property
    def how_to_go_on(self) -> str:
        """In Python; ``agl run`` says it in its own words."""
        if not self.can_go_on:
            return (
                "it cannot go on after this process, which has its store in memory: "
                "Trainer(run=...) keeps one in a file"
            )
        run_dir = f"run_dir={str(self.folder)!r}"
        if not self.is_kept:
            return (
                f"go on with Trainer({run_dir}) and what else it had; its store was in memory, and "
                "rollouts that came after its newest checkpoint are run again"
            )
        own = "" if self.folder == folders.default_folder(self.run_id) else f", {run_dir}"
        return f"go on with Trainer(run={self.run_id!r}, resume=True{own}) and what else it had"

    async def cancel_leftovers(self, store: LightningStore) -> None:
        over = [self.run_id] if self.generation > 1 else []
        if self.record is not None:  # of other runs, too: the runners of this one would take them
            for run in await query_runs(store):
                if run.run_id != self.run_id:
                    over += [run.run_id, records.canary_run(run.run_id)]
        await cancel_leftovers(store, *over)

    async def end(self, store: LightningStore, raised: BaseException | None) -> None:
        """Note how this start ended, by its ``reason``, and by what was raised.

        Where the store cannot be reached, the log has it.
        """
        outcome: RunOutcome
        if self.reason is not None and (raised is None or raised is self.stopped):
            outcome, error = "stopped", hide(self.reason)
        elif raised is None:
            outcome, error = "finished", None
        elif isinstance(raised, Exception):
            outcome, error = "failed", hide(f"{type(raised).__name__}: {raised}")
        else:
            outcome, error = "stopped", "interrupted"
        if self.record is None:
            return
        try:
            call = end_run(store, self.run_id, self.generation, outcome, error)
            self.record = await asyncio.wait_for(call, LAST_WORD_SECONDS)
        except ReplacedError as replaced:  # it would have finished
            self.note_replaced(replaced)
            await self.end(store, self.stopped)
        except Exception as failure:
            self.record = records.end(self.record, self.generation, outcome, error, time.time())
            logger.warning(
                "the store was not told that run %s is %s (%r): it will be shown as died",
                self.run_id,
                outcome,
                failure,
            )


class RunRecorder(Recorder):
    """Records runs in their stores, and in folders under ``agl-runs``."""

    def check(self, request: RunRequest) -> None:
        if request.run_id is not None:
            folders.check_run_id(request.run_id)
        elif request.resume:
            raise ConfigError(
                "resume=True needs the id of the run: Trainer(run=..., resume=True). See: agl runs"
            )

    def default_store(self, request: RunRequest) -> Given[LightningStore]:
        """Where the run has an id, the file in its folder.

        Raises:
            ConfigError: The run is to go on, and has no such file.
        """
        self.check(request)
        if request.run_id is None:
            return "memory"
        folder = request.folder or folders.default_folder(request.run_id)
        path = folder / folders.STORE
        if request.resume and not path.is_file():
            known = [each.parent.name for each in stores_here()]
            raise ConfigError(
                f"no run {request.run_id!r} to go on with: there is no {path}. Give its store or "
                "its run_dir, or leave resume out to begin it. Runs here: "
                f"{', '.join(known) or 'none'}"
            )
        make_private_folder(folder)
        return {"type": "sqlite", "path": str(path)}

    @contextmanager
    def recording(
        self,
        request: RunRequest,
        store: LightningStore,
        agent: LitAgent[Any],
        algorithm: Algorithm,
        datasets: Mapping[str, Dataset[Any]],
        hooks: HookCaller,
    ) -> Generator[RecordedStart]:
        """A block that is one start of a run; how it ends is noted, and its result is made.

        Raises:
            ConfigError: There is such a run already, or no such run, or another process has it, or
                its results would change; the message says which there are, and what differs. Or
                this thread runs an event loop, or a hook refuses such a run.
        """
        _check_no_loop()
        for hook in hooks:
            if (check := getattr(hook, "check_training", None)) is not None:
                check(algorithm, datasets.get("val"))
        self.check(request)
        now = _find(request, store)
        is_named = request.run_id is not None or request.folder is not None
        unknown = [] if now.before is None else _check_ended(now.before)
        is_made = request.makes_folder or now.place.is_dir()
        holding = folders.hold_folder(now.place) if is_named and is_made else nullcontext()
        with holding as has_lock:
            held = now.place if has_lock else None
            about = describe_run(agent, algorithm, datasets, request.config)
            _ask(store, lambda: check_alone(store, now.run_id, held))
            key = _begin(now, request, store, algorithm, about, unknown)
            if request.config is None:  # `agl run` says it in its own words
                place = now.folder if now.is_kept or request.folder else "memory: it cannot go on"
                logger.info("Run %s, in %s", now.run_id, place)
            error: BaseException | None = None
            try:
                # Another one may have begun in this moment.
                _ask(store, lambda: check_alone(store, now.run_id, held))
                yield now
            except BaseException as raised:
                error = raised
                if isinstance(raised, AlgorithmError):
                    _say_where_and_what(raised)
                if isinstance(raised, KeyboardInterrupt):
                    raised.__suppress_context__ = True  # asyncio's part, which tells a user nothing
                    raised.add_note(f"The run was interrupted: {now.how_to_go_on}")
                elif isinstance(raised, RunError) and raised is not now.stopped and now.can_go_on:
                    raised.add_note(f"What it has is kept: {now.how_to_go_on}")
                raise
            finally:
                asyncio.run(now.end(store, error))
                folders.UNDER_WAY.discard(key)
                if not isinstance(error, ConfigError | PluginError):
                    summed = sum_up(store, now.run_id, now.place, now.record, hooks)
                    now.result = asyncio.run(summed)
            if now.stopped is not None:
                raise now.stopped


def _say_where_and_what(error: AlgorithmError) -> None:
    """Add the place in the user's code; of a group, say the first error and how many more."""
    cause, num_errors = error.__cause__, 1
    while isinstance(cause, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", cause)
        num_errors, cause = num_errors + len(group.exceptions) - 1, group.exceptions[0]
    if cause is not error.__cause__:
        more = f" (and {num_errors - 1} more)" if num_errors > 1 else ""
        error.args = (f"the algorithm failed: {type(cause).__name__}: {cause}{more}",)
    if place := place_in(error):
        error.args = (f"{error} ({place})",)


def _check_no_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigError(
        "Trainer.fit: this thread runs an event loop, as a notebook does, and the run needs one "
        "of its own. Call it in another: await asyncio.to_thread(trainer.fit, agent, tasks)"
    )


def _find(request: RunRequest, store: LightningStore) -> RecordedStart:
    """The run that is asked for, and where it has its folder; nothing is changed.

    Raises:
        ConfigError: It is there and is to be new, or to go on and not there, or another one is.
    """
    named, folder = request.run_id, request.folder
    place = folder or (named and folders.default_folder(named))
    known = folders.known_run(place) if place else None
    run_id = named or (known[0] if known else folders.new_run_id())
    before: Run | None = None
    if named:
        before = asyncio.run(get_run(store, named))
    elif known:
        before = _ask(store, lambda: get_run(store, run_id))
    path = getattr(innermost(store), "path", None)
    if before is not None and isinstance(path, str):
        before = placed(before, Path(path))
    if folder is None and before is not None and before.folder:
        folder = Path(before.folder)
        known = folders.known_run(folder)
    folder = folder or folders.default_folder(run_id)
    if named and not request.resume and before is not None:
        raise ConfigError(
            f"run {run_id!r} is in the store already ({folders.shown_status(before)}). Look at it: "
            f"agl runs show {run_id}. Go on with it with resume=True, or give another run"
        )
    if known is not None and known[0] != run_id:
        raise ConfigError(
            f"run {run_id!r}: the folder {str(folder)!r} holds run {known[0]!r}. "
            f"Give another run_dir, or go on with that run: Trainer(run={known[0]!r}, "
            f"resume=True), or agl run --resume {known[0]}. One that begins from a checkpoint "
            "of it needs a folder of its own: give algorithm.run_dir, too"
        )
    if named and not request.resume and known is not None:
        raise ConfigError(
            f"run {run_id!r} has been begun already, in {str(folder)!r}, and the store given does "
            "not have it. Give the store that it had, resume=True to go on without, or another id"
        )
    if request.resume and before is None and known is None:
        runs = asyncio.run(query_runs(store))[-20:]
        names = ", ".join(run.run_id for run in reversed(runs)) or "none"
        raise ConfigError(
            f"no run {run_id!r} in this store to go on with. Leave resume out to begin it, or give "
            f"the store that it had. The newest here: {names}"
        )
    if before is None and known is not None:
        logger.warning(
            "the store has no record of run %s, so its options, tasks and code cannot be compared "
            "with those that it had; its algorithm compares only what it wrote into its folder",
            run_id,
        )
    number = 1 if known is None else known[1] + 1
    is_kept = innermost(store).capabilities.get("persistent", False)
    return RecordedStart(folder, run_id=run_id, generation=number, before=before, is_kept=is_kept)


def _check_ended(before: Run) -> list[str]:
    """What nobody knows of the end of a run's last start; to be asked before its folder is taken.

    Raises:
        ConfigError: It is under way in another process of this machine.
    """
    if not folders.is_alive(before):
        return []
    last = before.generations[-1]
    who = f"process {last.pid} on {last.host}"
    if folders.is_here(last) and last.pid != os.getpid():
        raise ConfigError(
            f"run {before.run_id!r} is running: {who}. Stop that one or wait for its end, or give "
            "another run"
        )
    return [f"nobody knows whether its last start has ended: {who}"]


def _begin(
    now: RecordedStart,
    request: RunRequest,
    store: LightningStore,
    algorithm: Algorithm,
    about: dict[str, Any],
    unknown: list[str],
) -> str:
    start = RunStart(
        run_id=now.run_id,
        folder=str(now.folder),
        pid=os.getpid(),
        host=platform.node(),
        machine=folders.machine_id(),
        begun_before=now.generation - 1,
        key=secrets.token_hex(8),
        **about,
    )
    folders.UNDER_WAY.add(start.key)
    now.what_shapes = what_shapes(start)
    if now.before is not None and now.before.algorithm == start.algorithm:
        safe, unsafe = differences(now.before, start, algorithm)
        _name_differences(now.before.run_id, [*safe, *unknown], unsafe, request)
        start = start.changed(differences=[*safe, *unknown, *unsafe])
    try:
        if request.run_id is None:
            now.record = _ask(store, lambda: begin_run(store, start))
        else:
            now.record = asyncio.run(begin_run(store, start))
    except InvalidTransitionError as error:
        raise ConfigError(str(error)) from error
    if now.record is not None:
        now.generation = now.record.generations[-1].number
    return start.key


def _name_differences(run_id: str, safe: list[str], unsafe: list[str], request: RunRequest) -> None:
    """Log what is not as it was; what would make another run of it is refused.

    Raises:
        ConfigError: Something would, and nobody forces it.
    """
    if unsafe and not request.force:
        new = "begin another run" if request.folder is None else "give another run_dir"
        raise ConfigError(
            f"cannot resume run {run_id!r}, as its results would change: {'; '.join(unsafe)}. Put "
            f"that back, {new}, or go on all the same with force=True (agl run --force)"
        )
    for each in [*safe, *unsafe]:
        logger.warning("run %s goes on with a difference: %s", run_id, each)


def _ask(store: LightningStore, call: Callable[[], Awaitable[T]]) -> T | None:
    """What a store says; None where it keeps no runs."""

    async def ask() -> T | None:
        try:
            return await call()
        except NotSupportedError as error:
            logger.info("this run has no record: %s", error)
            return None

    return asyncio.run(ask())
