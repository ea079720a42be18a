"""A step is trained again: the loop's own ``learn``, on what the run had collected for it."""

import asyncio
import tempfile
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from agl.errors import ConfigError
from agl.store.forwarding import StandInStore
from agl_learning.run.checkpoint import Progress, find_checkpoint, whole_checkpoints
from agl_learning.run.folder import Generation, read_generation
from agl_learning.run.records import Record, Records
from agl_learning.run.start import folder_of
from agl_learning.trainer.base import Training
from agl_learning.trainer.comparison import Replay
from agl_learning.trainer.opening import new_session
from agl_runs.description import options_of
from agl_runs.differences import options_then


class _Untouched(StandInStore):
    """A store in which nothing is noted: what is learned again has been noted before."""

    async def call(self, operation: str, arguments: dict[str, Any]) -> Any:
        return None if operation == "put_documents" else await super().call(operation, arguments)


async def replay(training: Training, step: int) -> Replay:
    """Train from the newest whole checkpoint before a step up to it; see ``agl_runs.replay``."""
    folder = training.get_run_folder() or training.folder_of_options()
    begun = None if folder is None else read_generation(folder)
    if folder is None or begun is None:
        raise ConfigError(f"{training.title}: there is no run in {str(folder)!r}")
    with tempfile.TemporaryDirectory(prefix="agl-replay-") as scratch, ExitStack() as given:
        store = _Untouched(training.get_store())
        records = Records(store, training.name, begun)
        await records.read()
        steps = records.steps()
        _check_trained(steps, step, folder)
        starts = {n: (one.metrics or {}).get("generation", 0) for n, one in steps.items()}
        given.enter_context(_as_begun(training, begun, starts[step]))
        session = new_session(training, store, begun, Path(scratch), Progress(0, 0), None)
        session.records = records
        checkpoint = await asyncio.to_thread(checkpoint_before, training, folder, step, begun)
        progress = Progress(0, 0) if checkpoint is None else Progress.of(checkpoint)
        again = range(progress.step + 1, step + 1)
        for number in again:
            _check_trained(steps, number, folder)
        try:
            training.enter(session)
            await training.begin(checkpoint, progress, Path(scratch))
            session.collector.reader.model = training.trained_model()
            left = {number: what_is_left(folder, number, progress.step) for number in again}
            for number in again:
                wanted = steps[number].rollout_ids
                if missing := await session.collector.missing(wanted):
                    raise ConfigError(
                        f"the store does not have {len(missing)} of {len(wanted)} rollouts of step "
                        f"{number} ({', '.join(missing[:3])}): they were deleted, or it is another "
                        f"store. Step {max(again)} needs them. {left[number]}"
                    )
            exact = steps[step].weights is not None and training.deterministic
            told = Replay(step, progress.step, exact)
            others = [one for n in again for one in training.changed_options(folder, starts[n])]
            told.notes += [f"with another option than the run: {x}" for x in dict.fromkeys(others)]
            if progress.step in steps:
                name, before = f"weights after step {progress.step}", steps[progress.step].weights
                told.compare_weights(name, before, training.digest())
            for number in again:
                record = steps[number]
                collected = await session.collector.read(record.rollouts, record.lost)
                learned = await training.learn(collected, number)
                if number == step:
                    await told.compare_accounts(session.store, begun.run, collected)
                    rows = record.rows if record.metrics else None
                    told.compare_rows(rows, learned.rows, learned.rollout_ids)
                    told.compare_metrics(record.metrics or {}, learned.metrics)
                name = f"weights after step {number}"
                told.compare_weights(name, record.weights, training.digest())
        finally:
            await training.leave()
    return told


@contextmanager
def _as_begun(training: Training, begun: Generation, start: int) -> Generator[None]:
    """A block in which a trainer has the options of a start, but those that it alone has."""
    of_run: dict[str, Any] = begun.shape.get("options") or {}
    now = options_of(training)
    then = options_then(begun.shape_at(start), begun.shape, training).items()
    options = {name: value for name, value in then if now.get(name) == of_run.get(name)}
    before = {name: getattr(training, name) for name in options}

    def give(options: Mapping[str, Any]) -> None:
        for name, value in options.items():
            setattr(training, name, value)
        if options:
            training.__post_init__()

    give(options)
    try:
        yield
    finally:
        give(before)


def _check_trained(steps: Mapping[int, Record], step: int, folder: Path) -> None:
    if step not in steps:
        known = f"steps {min(steps)} to {max(steps)}" if steps else "no step"
        raise ConfigError(
            f"the store has no step {step} of the run in {str(folder)!r}; it has {known}"
        )


def checkpoint_before(
    training: Training, folder: Path, step: int, begun: Generation
) -> Path | None:
    """The newest whole one that a step can be trained from; None is the run's beginning.

    Raises:
        ConfigError: The run began from another run's checkpoint, and that is gone.
    """
    for checkpoint in whole_checkpoints(folder):
        if Progress.of(checkpoint).step < step and training.is_usable(checkpoint):
            return checkpoint
    if begun.origin is None or folder_of(Path(begun.origin)) == Path(begun.origin):
        return None  # that run had no checkpoint yet, whatever it has by now
    try:
        return find_checkpoint(begun.origin)
    except ConfigError as error:
        raise ConfigError(
            f"step {step} cannot be trained again: the run began from {begun.origin!r}, which "
            f"is not whole any more ({error}), and no checkpoint of its own from before that "
            f"step is kept. {what_is_left(folder, step)}"
        ) from error


def what_is_left(folder: Path, missing: int, begun_at: int | None = None) -> str:
    """Which steps can be trained again, for a message.

    ``missing`` is the step that cannot; ``begun_at`` is that of the whole checkpoint before it.
    """
    left: list[str] = []
    if begun_at is not None and missing > begun_at + 1:
        left.append(f"steps {begun_at + 1} to {missing - 1}")
    kept = [Progress.of(checkpoint).step for checkpoint in whole_checkpoints(folder)]
    if later := [step for step in kept if step >= missing]:
        left.append(f"those after step {min(later)}")
    return f"What can be trained again: {' and '.join(left) or 'nothing'}"
