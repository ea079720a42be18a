"""What exists while a loop of fine-tuning runs: folder, journal, report, collector, sums."""

import contextlib
import secrets
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agl.errors import ConfigError, install_line
from agl.types import RolloutConfig
from agl_learning.generations import begin_generation, read_generation
from agl_learning.journal import Journal

if TYPE_CHECKING:
    from agl.algorithm.gateway import Gateway
    from agl_learning.accounts import Totals
    from agl_learning.collect import Collector
    from agl_learning.loop import FineTuning
    from agl_learning.report import Report

SILENCE_SECONDS = 60.0
"""A rollout without a sign for so long runs again: its runner died with the run before."""


@dataclass
class Session:
    """What exists while a loop runs."""

    folder: Path
    run_id: str
    generation: int
    """Which start of the run this is, from 1."""
    journal: Journal
    report: "Report"
    gateway: "Gateway"
    collector: "Collector"
    totals: "Totals"
    """Of the whole run."""
    rewards: list[float | None] = field(default_factory=list[float | None])
    """Mean per iteration, those of earlier parts of the run too."""
    val_rewards: list[tuple[int, float | None]] = field(
        default_factory=list[tuple[int, float | None]]
    )
    """(version, mean) per evaluation."""

    def begin(self, identity: dict[str, Any]) -> None:
        """Bind the folder to this run; not before everything was found to be right."""
        if self.journal.last("begun") is None:
            self.journal.append("begun", run_id=self.run_id, identity=identity)
        begin_generation(self.folder, self.run_id)


@contextlib.contextmanager
def open_session(loop: "FineTuning") -> Generator[Session]:
    """A new run, or the one in the folder, as far as it is.

    Raises:
        ConfigError: The folder is in use, or holds a run of another identity or algorithm.
    """
    from agl_learning.accounts import Totals
    from agl_learning.collect import Collector
    from agl_learning.report import Report

    name, gateway = loop.name, loop.get_llm_proxy()
    if gateway is None:
        raise ConfigError(
            f"{name} needs a gateway that records model calls. Run: {install_line('agl-gateway')}, "
            "or pass Trainer(llm_proxy=...)"
        )
    # Absolute: an agent may change the folder of the process, and what is written down must be
    # found from elsewhere, too.
    named = Path(loop.run_dir or Path("agl-runs") / time.strftime(f"{name}-%Y%m%d-%H%M%S"))
    folder = named.resolve()
    retry = RolloutConfig(
        timeout_seconds=loop.rollout_timeout_seconds,
        unresponsive_seconds=SILENCE_SECONDS,
        max_attempts=2,
        retry_condition=["unresponsive"],
    )
    with Journal(folder) as journal:
        run_id, before = _find_run(loop, journal), read_generation(folder)
        collections = journal.all("collected")
        totals = [entry["totals"] for entry in journal.entries if "totals" in entry]
        with Report(
            loop, name, folder, loop.iterations, len(collections), loop.show_progress
        ) as report:
            yield Session(
                folder=report.folder,
                run_id=run_id,
                generation=before.number + 1 if before else 1,
                journal=journal,
                report=report,
                gateway=gateway,
                collector=Collector(
                    loop.get_store(),
                    gateway,
                    loop.get_adapter(),
                    retry,
                    infrastructure_failures=loop.infrastructure_failures,
                ),
                totals=Totals(totals[-1] if totals else None),
                rewards=[entry["reward"] for entry in collections],
                val_rewards=[
                    (entry["version"], entry["reward"]) for entry in journal.all("evaluated")
                ],
            )


def _find_run(loop: "FineTuning", journal: Journal) -> str:
    """The id of the run to continue, or a new one."""
    begun = journal.last("begun")
    folder = journal.path.parent
    if begun is None:
        # A run of ours has written its journal before either of these.
        if read_generation(folder) is not None or (folder / "metrics.jsonl").exists():
            raise ConfigError(
                f"{loop.name}: {str(folder)!r} holds a run of another algorithm, and no journal of "
                "fine-tuning. Give another run_dir"
            )
        return secrets.token_hex(6)
    for name, value in loop.identity().items():
        before = begun["identity"].get(name)
        if before != value:
            raise ConfigError(
                f"{loop.name}: {str(folder)!r} holds a run with another {name}: "
                f"{before!r} then, {value!r} now. Continue it with what it had, or give another "
                "run_dir"
            )
    return begun["run_id"]
