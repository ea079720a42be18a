"""Training in which every step makes a whole version of the model: one step, and it once more."""

import asyncio
import contextlib
import tempfile
from abc import abstractmethod
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from agl.errors import ConfigError
from agl_learning.reports.json_lines import write_lines
from agl_learning.run.generations import Generation, read_generation
from agl_learning.run.journal import Journal
from agl_learning.run.start import run_folder
from agl_learning.trainer.loop import Training
from agl_models.versions import Version

if TYPE_CHECKING:
    from agl_learning.collect.results import Collected
    from agl_learning.resume.replay_result import Replay
    from agl_learning.resume.session import Session
    from agl_learning.run.journal import Entry

OF_TRAINING = "train/"
"""Beginning of the names of metrics that the training gave."""
_PLACES = {
    "selected": "iteration",
    "trained": "version",
    "evaluated": "version",
    "given up": "after",
}
LEFT = (
    "What can be trained again: each step whose rollouts are in the store and before which the "
    "version is kept"
)


@dataclass(kw_only=True, eq=False, repr=False)
class VersionTraining(Training):
    """What a subclass says of its versions, and how one of them is made again."""

    @abstractmethod
    async def prepare(self) -> Version:
        """Refuse what cannot work, before anything is started; the version that a run begins with.

        Called when a run is continued, too.

        Raises:
            ConfigError: An option, a model or a machine that will not do.
        """

    def is_whole(self, version: Version) -> bool:
        """Whether a version that was trained is still what it was; True where nobody can say."""
        return True

    @abstractmethod
    def select(self, collected: "Collected", iteration: int) -> list[dict[str, Any]]:
        """What is trained, as JSON objects, in order; every open call gets a bin of the ledger.

        Deterministic: after a kill it may be asked again. The calls in ``collected.ended[i].rows``
        are open, the others have their bin.

        Raises:
            AlgorithmError: There is nothing to train; it says why. The ledger is kept all the same.
        """

    async def clean_up(self) -> None:
        """Let go of what ``prepare`` and the others hold; called at the end, whatever happened."""

    @abstractmethod
    async def train(self, examples: Path, version: Version, number: int) -> Version:
        """Make version ``number`` from ``version`` and the examples; it is whole when this returns.

        After a kill it is called again with the same arguments. What it needs then, it keeps in
        files of ``self.session.folder`` or with ``self.journal.append``.

        Args:
            examples: JSON lines, of ``select``.
            version: The newest one.
            number: Of the version that comes.
        """

    def fingerprint(self, version: Version) -> str | None:
        """What tells the weights of a version from others, bit for bit; None where nobody can."""
        return None

    async def replay(self, step: int) -> "Replay":
        """Select and train a version again, from the one before it, in a folder that goes after."""
        from agl_learning.collect.step_metrics import collected_metrics
        from agl_learning.resume.replay import (
            check_rollouts,
            compare_accounts,
            compare_lines,
            compare_metrics,
            compare_weights,
            new_replay,
            read_again,
            step_of,
        )

        folder = run_folder(self, self.run_dir)
        run, before = read_generation(folder), Journal.of(folder)
        if run is None:
            raise ConfigError(f"{self.title}: there is no run in {str(folder)!r}")
        stands = standing(before)
        entries = {one["version"]: one for one in stands if one["event"] == "trained"}
        wanted = step_of(entries, step, folder)
        key = wanted["key"]
        selected = next(one for one in stands if one["event"] == "selected" and one["key"] == key)
        self.check_identity(folder, (before.last("begun") or {}).get("identity", {}))
        with tempfile.TemporaryDirectory(prefix="agl-replay-") as scratch:
            async with self._apart(Path(scratch), run) as session:
                base = await self.prepare()
                if step > 1:
                    base = version_of(step_of(entries, step - 1, folder))
                if step > 1 and not await asyncio.to_thread(self.is_whole, base):
                    raise ConfigError(
                        f"step {step} cannot be trained again: version {step - 1}, from which it "
                        f"was trained, is not whole any more ({base.ref}). {LEFT}"
                    )
                session.collector.model = self.trained_model()
                await check_rollouts(session.collector, before, {step: key}, lambda _: LEFT)
                collected = await read_again(session.collector, before, key)
                examples = session.folder / "examples.jsonl"
                write_lines(examples, self.select(collected, step))
                made = await self.train(examples, base, step)
                old, now = self.fingerprint(version_of(wanted)), self.fingerprint(made)
                replay = new_replay(step, step - 1, self.deterministic and now is not None)
                await compare_accounts(replay, self.get_store(), run.run, collected)
                measured = collected_metrics(collected, self.trained_model())
                compare_metrics(replay, selected["metrics"], measured)
                compare_lines(replay, "examples", folder / selected["file"], examples)
                compare_metrics(replay, version_of(wanted).metrics, made.metrics, OF_TRAINING)
                compare_weights(replay, f"weights after step {step}", old, now)
        return replay

    @contextlib.asynccontextmanager
    async def _apart(self, scratch: Path, run: Generation) -> "AsyncGenerator[Session]":
        """A session in a folder of its own, in which no agent is run."""
        from agl_learning.collect.step_metrics import Totals
        from agl_learning.reports.report import Report
        from agl_learning.resume.session import Session

        with Journal(scratch) as self._journal:
            self._session = Session(
                algorithm=self.name,
                folder=scratch,
                generation=run,
                report=Report(self, self.name, scratch, self.num_steps, 0, False),
                store=self.get_store(),
                gateway=cast("Any", None),
                collector=self.collector(),
                totals=Totals(),
                steps_done=0,
            )
            try:
                yield self._session
            finally:
                await self.clean_up()
                self._session = self._journal = None


def version_of(trained: "Entry") -> Version:
    """That of an entry of the journal."""
    metrics = {
        name.removeprefix(OF_TRAINING): value
        for name, value in trained["metrics"].items()
        if name.startswith(OF_TRAINING)
    }
    return Version(trained["version"], trained["ref"], metrics)


def standing(journal: Journal) -> "list[Entry]":
    """The entries that count, of what was selected, trained, evaluated and given up.

    Where a run has gone back to a version, what was made of that version stands no more, but for
    the examples: those are trained once more. Where rollouts to train on were given up, so was
    all that came of them.
    """
    found: list[Entry] = []
    for entry in journal.entries:
        event = entry["event"]
        if event == "given up" and entry["mode"] == "train":
            found = [one for one in found if place(one) <= entry["after"]]
        elif event == "went back":
            to = entry["version"]
            found = [one for one in found if place(one) <= to or one["event"] == "selected"]
        if event in _PLACES:
            found.append(entry)
    return found


def place(entry: "Entry") -> int:
    """The version that came, or is to come, of it; of what was given up, the one before."""
    return entry[_PLACES[entry["event"]]]
