"""A start of a run: its folder is held, what was done after its checkpoint does not count."""

import contextlib
import logging
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from agl.algorithm.gateway import Gateway
from agl.store.base import LightningStore
from agl_learning.garbage import settled
from agl_learning.reports.report import Report
from agl_learning.run.checkpoint import Progress, remove_leftovers, set_aside
from agl_learning.run.folder import (
    Generation,
    hold_run,
    mark_lost,
    next_generation,
    read_generation,
    write_generation,
)
from agl_learning.run.start import Origin
from agl_learning.trainer.base import Training
from agl_learning.trainer.session import Session
from agl_runs.differences import shape_changes

logger = logging.getLogger("agl.learning")


@contextlib.asynccontextmanager
async def open_run(training: Training, origin: Origin) -> AsyncGenerator[Session]:
    """A block in which a run has its folder, and goes on from its newest checkpoint."""
    gateway = training.gateway()
    folder, progress = origin.folder, origin.progress()
    with hold_run(folder):
        remove_leftovers(folder, "gone", "partial")  # first: a disk may be full of them
        before, shape = read_generation(folder), training.shape(folder)
        about: dict[str, Any] = {"algorithm": training.name, "shape": shape}
        about["earlier"] = before.earlier_than(shape) if before else []
        if not origin.is_same_run or origin.checkpoint is None:
            about["origin"] = origin.other_run
        start = next_generation(folder, training, **about)
        session = new_session(training, training.get_store(), start, folder, progress, gateway)
        session.checkpoint = origin.checkpoint
        session.begun_at = 0 if origin.is_same_run else progress.step
        training.enter(session)
        try:
            with session.report.bar:
                await training.begin(origin.checkpoint, progress, folder)
                session.collector.reader.model = training.trained_model()
                # Killed here, the next start must find the same checkpoint, and what changed.
                set_aside(folder, progress.step)
                given = (shape, training, training.depends_on_steps)
                changes = shape_changes(before.shape, *given) if before else []
                await _go_back(session, changes)
                write_generation(folder, start)
                with settled():
                    yield session
        finally:
            remove_leftovers(folder, "gone")
            await training.leave()


def new_session(
    training: Training,
    store: LightningStore,
    start: Generation,
    folder: Path,
    progress: Progress,
    gateway: Gateway | None,
) -> Session:
    """What exists while the run runs; or, without a gateway, its replay, which nobody hears of."""
    is_replay, name = gateway is None, training.name
    shows, hooks = training.show_progress and not is_replay, () if is_replay else training.hooks
    report = Report(training, name, folder, training.num_steps, progress.step, shows)
    given = (store, start, folder, progress, gateway)
    return Session(name, *given, training.collector(), report, hooks)


async def _go_back(session: Session, changes: Sequence[str]) -> None:
    """Have nothing count that earlier starts did after the checkpoint."""
    step = session.steps_done
    evaluated, records = session.is_evaluated(step), session.records

    def is_lost(part: Any) -> bool:
        number = part.step or 0
        return number > step or (number == step and part.mode == "val" and not evaluated)

    await mark_lost(session.store, session.run_id, is_lost)
    known = session.report.go_back(step, evaluated)
    lacks = {*range(session.begun_at + 1, step + 1)} - known
    await records.read(0 if lacks else step)
    if lacks:
        session.report.go_back(step, evaluated, records.metrics())
    if changes:
        logger.warning(
            "the run goes on after step %d as what it was not: %s. What came after that step "
            "is drawn anew",
            step,
            ", ".join(changes),
        )
        await records.redraw("val", step)
