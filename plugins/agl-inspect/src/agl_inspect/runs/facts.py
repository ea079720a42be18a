"""All that is known of how a run went: from its store, its record and its folder.

The one place that works it out; the summary at the end of a run, ``agl report``, ``report.html``
and ``agl show`` say it in their words.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agl.algorithm.run_result import RunResult
from agl.errors import NotSupportedError
from agl.store.base import LightningStore
from agl.store.queries import each_record
from agl.types import AttemptedRollout
from agl_learning.reports.diagnostics import Finding
from agl_learning.reports.run_metrics import RunMetrics
from agl_learning.run.checkpoint import best_checkpoint, whole_checkpoints
from agl_records.ledger.tables import Accounts, Sums, in_no_account
from agl_runs.finding import innermost
from agl_runs.folders import shown_status
from agl_runs.records import Run
from agl_runs.result import known_of, result_of, summary_in


@dataclass(frozen=True)
class HeldOut:
    """One evaluation on the validation tasks."""

    step: int
    reward: float | None
    """Mean."""
    rollouts: int | None = None
    """How many it is the mean of; None where nobody wrote it down."""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """How a run went, all its starts together."""

    result: RunResult
    """What ``Trainer.fit`` returns; its lists of steps and evaluations are below, with more."""
    run: Run | None = None
    """Its record; None where the store has none."""
    state: str = ""
    """As the record has it, with ``died`` for a run whose process is gone."""
    seconds: float | None = None
    """Of all starts; None where nobody knows."""
    took_longer: bool = False
    """Whether it was more: a start was killed, and counts to the last that is known of it."""
    metrics: RunMetrics = RunMetrics()
    held_out: list[HeldOut] = field(default_factory=list[HeldOut])
    calls: int = 0
    """Model calls in the ledger."""
    calls_trained: int = 0
    excluded: dict[str, int] = field(default_factory=dict[str, int])
    """Reason -> model calls, most frequent first."""
    uncounted: int = 0
    """Rollouts whose calls are in no account."""
    steps_uncounted: str = ""
    """Of which steps these are."""
    findings: list[Finding] = field(default_factory=list[Finding])
    """Why nothing, or not much, could be learned."""
    unread: str = ""
    """What of its metrics and findings cannot be read, and is left out; "" where all was read."""
    checkpoint: str | None = None
    best_checkpoint: str | None = None
    best_reward: float | None = None
    """Held-out, of the best checkpoint."""
    store_path: str | None = None
    """The file of the store, where it is one."""

    @property
    def curve(self) -> list[tuple[int, float | None]]:
        """(step, mean reward) of training."""
        return list(self.metrics.rewards.items())

    @property
    def points(self) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
        """The same of those steps that have one, and of the evaluations: what is drawn."""
        marks = [(one.step, one.reward) for one in self.held_out]
        both = [[(step, y) for step, y in one if y is not None] for one in (self.curve, marks)]
        return both[0], both[1]

    @property
    def held_out_before(self) -> HeldOut | None:
        """That before training."""
        return next((one for one in self.held_out if one.step == 0), None)

    @property
    def held_out_after(self) -> HeldOut | None:
        """The last one, if it is not the first."""
        return self.held_out[-1] if len(self.held_out) > 1 else None

    def as_json(self) -> dict[str, Any]:
        result = self.result
        return {
            "run": result.run_id,
            "algorithm": result.algorithm,
            "state": self.state,
            "folder": None if result.folder is None else str(result.folder),
            "store": self.store_path,
            "seconds": self.seconds,
            "took_longer": self.took_longer,
            "starts": len(self.run.generations) if self.run else None,
            "trained": result.trained,
            "rollouts": dict(result.rollouts or {}),
            "mean_reward": result.mean_reward,
            "held_out": [asdict(one) for one in self.held_out],
            "curve": self.curve,
            "calls": self.calls,
            "calls_trained": self.calls_trained,
            "calls_excluded": self.excluded,
            "rollouts_uncounted": self.uncounted,
            "steps_uncounted": self.steps_uncounted,
            "tokens_given": self.metrics.total("tokens/given"),
            "tokens_sampled": self.metrics.total("tokens/sampled"),
            "checkpoint": self.checkpoint,
            "best_checkpoint": self.best_checkpoint,
            "best_reward": self.best_reward,
            "failures": [asdict(one) for one in result.failures],
            "findings": [asdict(one) for one in self.findings],
            "unread": self.unread or None,
        }


async def run_facts(
    store: LightningStore,
    *,
    run: Run | None = None,
    result: RunResult | None = None,
    is_quick: bool = False,
) -> RunFacts:
    """Work out how a run went.

    Args:
        store: Of the run. It is only read.
        run: Its record, with the folder where it lies now (see ``placed``); None takes that of
            ``result``.
        result: What is known of it already.
        is_quick: Whether to leave out what only all its rollouts and accounts say: how many of
            them there are, and why some failed.
    """
    run = run or (result.record if result else None)
    if result is None:
        known = run.run_id if run else "", Path(run.folder) if run and run.folder else None, run
        result = known_of(*known) if is_quick else await result_of(store, *known)
    metrics = RunMetrics.read(result.folder, result)
    findings, lost = ([], "") if result.folder is None else Finding.read(result.folder)
    series = metrics.series
    counts = dict(series.get("val/rollouts/succeeded") or series.get("val/tasks") or {})
    for step in series.get("val/reward/seed", {}):
        counts.setdefault(0, counts.get(step, 0))
    held_out = [
        HeldOut(step, reward, int(counts[step]) if step in counts else None)
        for step, reward in metrics.val_rewards.items()
    ]
    calls, counted = _said_calls(result.folder)
    uncounted = sum((result.rollouts or {}).values()) - counted if counted is not None else 0
    if not calls and not is_quick:
        with suppress(NotSupportedError):  # a store of 0.3
            accounts = await Accounts.read(store, run=result.run_id)
            calls = accounts.total
            uncounted = accounts.without if calls else uncounted
    steps_uncounted = ""
    if uncounted > 0 and not is_quick:
        steps_uncounted = await in_no_account(store, result.run_id, uncounted, lost=False)
    state = result.status if run is None else shown_status(run)
    seconds, took_longer = None, False
    if run is not None:
        asked = None if is_quick else store
        seconds, took_longer = await _seconds_of(run, metrics.lines, state == "running", asked)
    return RunFacts(
        result=result,
        run=run,
        state=state,
        seconds=seconds,
        took_longer=took_longer,
        metrics=metrics,
        held_out=held_out,
        calls=calls["calls", "total"],
        calls_trained=calls["calls", "trained"],
        excluded=dict(calls.excluded("calls").most_common()),
        uncounted=max(uncounted, 0),
        steps_uncounted=steps_uncounted,
        findings=findings,
        unread="; ".join(filter(None, [metrics.unread, lost])),
        **_checkpoints(result, held_out),
        store_path=getattr(innermost(store), "path", None),
    )


def _said_calls(folder: Path | None) -> tuple[Sums, int | None]:
    """As the algorithm summed them up at its end, and of how many rollouts; else nothing, None."""
    try:
        said = summary_in(folder)
        counts: dict[str, int] = {"total": said["calls"], "trained": said["calls_trained"]}
        counts |= said["calls_excluded"]
    except (TypeError, KeyError):
        return Sums(), None
    sums = Sums({("calls", name): number for name, number in counts.items() if number})
    return sums, said.get("rollouts")


def _checkpoints(result: RunResult, held_out: Iterable[HeldOut]) -> dict[str, Any]:
    """Those that the run named at its end; of one that has not ended, those of its folder."""
    last, best, folder = result.checkpoint, result.best_checkpoint, result.folder
    if folder is None:
        return {"checkpoint": last, "best_checkpoint": best}
    last, best, best_reward = _lies_at(last, folder), _lies_at(best, folder), None
    if found := best_checkpoint(folder, [(one.step, one.reward) for one in held_out]):
        best, best_reward = str(found[0]), found[1]
    if last is None and (newest := next(whole_checkpoints(folder), None)):
        last = str(newest)
    return {"checkpoint": last, "best_checkpoint": best, "best_reward": best_reward}


def _lies_at(said: str | None, folder: Path) -> str | None:
    """A checkpoint as the end of the run named it, in the folder that was moved since."""
    if said is None or Path(said).is_relative_to(folder):
        return said
    here = folder.joinpath(*Path(said).parts[-2:])
    return str(here) if here.is_dir() else said


async def _seconds_of(
    run: Run, lines: Iterable[Mapping[str, Any]], is_running: bool, store: LightningStore | None
) -> tuple[float | None, bool]:
    """Seconds of all starts that have ended, None where nobody knows; and whether they may be more.

    Nobody saw the end of a start that was killed, which counts to the last that is known of it.
    Without ``store`` what only rollouts say is left out; ``lines`` are of the run's metrics.
    """
    total, is_known, may_be_more = 0.0, False, False
    took: dict[Any, float] = {}
    for line in lines:
        for name in ("time/step", "val/time/rollouts"):
            if isinstance(value := line.get(name), int | float):
                number = line.get("generation")
                took[number] = took.get(number, 0.0) + value
    is_killed = any(one.end_time is None for one in run.generations[: -1 if is_running else None])
    signs = await _last_signs(store, run.run_id) if is_killed and store is not None else {}
    for n, start in enumerate(run.generations):
        is_last = n == len(run.generations) - 1
        if start.end_time is not None:
            total, is_known = total + start.end_time - start.start_time, True
        elif not (is_last and is_running):
            end = None if is_last else run.generations[n + 1].start_time
            seen = start.start_time + took.get(start.number, 0.0)
            seen = max(seen, signs.get(start.number, 0.0))
            seen = seen if end is None else min(seen, end)
            total, may_be_more = total + seen - start.start_time, True
    is_known = is_known or total > 0
    return (total if is_known else None), is_known and may_be_more


async def _last_signs(store: LightningStore, run_id: str) -> dict[Any, float]:
    """Start -> when one of its rollouts was last heard of."""
    signs: dict[Any, float] = {}
    async for one in each_record(store.query_rollouts, run=run_id):
        about = one.metadata or {}
        if about.get("run") != run_id:  # a store of 0.3 has no filter
            continue
        times = [signs.get(about.get("generation")), one.start_time]
        if one.status != "cancelled":  # which the next start did
            times.append(one.end_time)
        if isinstance(one, AttemptedRollout):
            times += [one.attempt.start_time, one.attempt.last_heartbeat_time]
        signs[about.get("generation")] = max(time for time in times if time is not None)
    return signs
