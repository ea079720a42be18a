"""Training a step again: what a run's journal and store say of it, and how it compares."""

import hashlib
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agl.errors import ConfigError
from agl_learning.resume.collection_journal import collected_under
from agl_learning.resume.replay_result import Compared, Replay
from agl_records.ledger.documents import each_part
from agl_records.ledger.ledger import ledger_parts
from agl_runs.differences import options_that_shape

if TYPE_CHECKING:
    from agl.algorithm.base import Algorithm
    from agl.store.base import LightningStore
    from agl_learning.advantages.weighing import Weighed
    from agl_learning.collect.collector import Collector
    from agl_learning.collect.results import Collected
    from agl_learning.run.journal import Entry, Journal
    from agl_records.types import LedgerPart

TOLERANCE = 1e-3
"""Relative, of the metrics of runs that are not deterministic."""
_TINY = 1e-5
"""Smaller differences are none then: of a loss about zero."""
_OF_THE_START = ("step", "generation", "version", "seconds")
_TIMES = "time/"
"""Metrics that say nothing of what was trained, and what the names of others begin with."""


def new_replay(step: int, begun_at: int, exact: bool) -> Replay:
    """One in which nothing is compared yet."""
    return Replay(step, begun_at, exact, 0.0 if exact else TOLERANCE)


def digest_of(one: "Weighed") -> str:
    """What tells a row, and how much it was trained, from another."""
    row, found = one.row, hashlib.sha256()
    for numbers in (
        array("q", row.token_ids),
        array("q", [end for span in row.call_ranges for end in span]),
        array("d", row.logprobs),
        array("d", [advantage.value for advantage in one.advantages]),
        *(array("d", values) for values in (one.tokens, one.returns) if values),
    ):
        found.update(len(numbers).to_bytes(8) + numbers.tobytes())
    return found.hexdigest()[:12]


def trained_steps(journal: "Journal") -> "dict[int, Entry]":
    """The entry of each step that was trained, as it was trained last.

    Where rollouts were given up, what was trained with them and after them is gone.
    """
    steps: dict[int, Entry] = {}
    for entry in journal.entries:
        if entry["event"] == "trained":
            steps[entry["step"]] = entry
        elif entry["event"] == "given up" and entry["mode"] == "train":
            steps = {step: one for step, one in steps.items() if step <= entry["after"]}
    return steps


def step_of(steps: "Mapping[int, Entry]", step: int, folder: object) -> "Entry":
    """The entry of a step.

    Raises:
        ConfigError: It was not trained.
    """
    if step not in steps:
        known = f"steps {min(steps)} to {max(steps)}" if steps else "no step"
        raise ConfigError(f"the journal of {str(folder)!r} has no step {step}; it has {known}")
    return steps[step]


async def check_rollouts(
    collector: "Collector",
    journal: "Journal",
    keys: Mapping[int, str],
    what_is_left: Callable[[int], str],
) -> None:
    """Refuse to begin where the store does not have the rollouts of all steps.

    Args:
        collector: Reads the store.
        journal: Of the run.
        keys: Step -> key of what was collected for it.
        what_is_left: Gives, for the first step that lacks some, the end of the message.

    Raises:
        ConfigError: It lacks some; the message says of which step.
    """
    for step, key in keys.items():
        parts = collected_under(journal, key)
        if not parts:
            raise ConfigError(f"the journal does not say which rollouts step {step} had")
        wanted = [one for done in parts for _, one in done["rollouts"]]
        wanted += [one for done in parts for one in done["lost"]]
        missing = await collector.missing(wanted)
        if missing:
            raise ConfigError(
                f"the store does not have {len(missing)} of {len(wanted)} rollouts of step {step} "
                f"({', '.join(missing[:3])}): they were deleted, or it is another store. Step "
                f"{max(keys)} needs them. {what_is_left(step)}"
            )


async def read_again(collector: "Collector", journal: "Journal", key: str) -> "Collected":
    """What was collected under a key, out of the store."""
    parts = collected_under(journal, key)  # check_rollouts has found them
    rollouts = [one for done in parts for one in done["rollouts"]]
    return await collector.read(rollouts, [one for done in parts for one in done["lost"]])


def note_options(replay: Replay, journal: "Journal", algorithm: "Algorithm") -> None:
    """Say in which options the algorithm is not as the run had it."""
    begun = journal.last("begun") or {}
    before: dict[str, Any] | None = begun.get("options")
    for name, now in options_that_shape(algorithm).items():
        if before is not None and before.get(name) != now:
            was = before.get(name)
            replay.notes.append(f"with another {name}: {was!r} in the run, {now!r} now")


def compare_metrics(
    replay: Replay, before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = ""
) -> None:
    """Add the metrics of a step, bit for bit or as near as ``replay.tolerance``."""
    for name in dict.fromkeys((*before, *now)):
        was: Any = before.get(name)
        is_now: Any = now.get(name)
        of_the_start = name in _OF_THE_START or name.startswith(_TIMES)
        if of_the_start or (was is None and is_now is None):
            continue
        same = was == is_now or (not replay.is_exact and _is_near(was, is_now, replay.tolerance))
        replay.compared.append(Compared(prefix + name, was, is_now, same))


def compare_weights(replay: Replay, what: str, before: str | None, now: str | None) -> None:
    """Add what tells weights from others; where bits need not be the same, nothing is compared."""
    same = before == now if replay.is_exact and before is not None else None
    replay.compared.append(Compared(what, before, now, same))


def compare_rows(replay: Replay, before: Sequence[str] | None, rows: "Sequence[Weighed]") -> None:
    """Add the rows that were trained: their tokens, log-probabilities and advantages.

    Args:
        replay: Gets it.
        before: ``digest_of`` each; None where the run did not note them.
        rows: As they are now.
    """
    now = [digest_of(one) for one in rows]
    where = ""
    if before is not None and before != now:
        pairs = zip(before, now, strict=False)
        at = next((n for n, (was, is_now) in enumerate(pairs) if was != is_now), len(before))
        whose = f" (rollout {rows[at].row.rollout_id})" if at < len(rows) else ""
        where = f"row {at} of {len(before)}{whose}: its tokens, log-probabilities or advantages"
    same = None if before is None else before == now
    replay.compared.append(Compared("rows trained", _short(before), _short(now), same, where))


def compare_lines(replay: Replay, what: str, before: Path, now: Path) -> None:
    """Add two files of JSON lines; one of before that is not there any more is noted."""
    lines = now.read_text("utf-8").splitlines()
    if not before.is_file():
        replay.notes.append(f"{before} is not there any more; {what} are not compared")
        replay.compared.append(Compared(what, None, len(lines), None))
        return
    old, where = before.read_text("utf-8").splitlines(), ""
    if old != lines:
        pairs = zip(old, lines, strict=False)
        at = next((n for n, (was, is_now) in enumerate(pairs, 1) if was != is_now), None)
        where = f"line {at or min(len(old), len(lines)) + 1} of {before}"
    replay.compared.append(Compared(what, len(old), len(lines), old == lines, where))


def _short(digests: Sequence[str] | None) -> str | None:
    if digests is None:
        return None
    whole = hashlib.sha256("".join(digests).encode()).hexdigest()[:12]
    return f"{len(digests)} ({whole})"


async def compare_accounts(
    replay: Replay, store: "LightningStore", run_id: str, collected: "Collected"
) -> None:
    """Add what became of each call, with its reward and advantage, against the store's ledger."""
    ids = {rollout.rollout_id for rollout in collected.rollouts}
    parts = [
        part
        async for part in each_part(store, run=run_id, step=replay.step, lost=False)
        if part.rollout_id in ids
    ]
    before = _bins(parts)
    now = _bins(ledger_parts(collected.ledger, collected.rollouts))
    for number, what in enumerate(("bins", "rewards", "advantages")):
        was = {key: values[number] for key, values in before.items()}
        is_now = {key: values[number] for key, values in now.items()}
        differing = [
            key for key in dict.fromkeys((*was, *is_now)) if was.get(key) != is_now.get(key)
        ]
        where = ""
        if before and differing:
            key = differing[0]
            where = (
                f"{key}: {was.get(key, 'not there')!r} then, {is_now.get(key, 'not there')!r} now"
                f"; {len(differing)} differ"
            )
        replay.compared.append(
            Compared(what, len(was), len(is_now), not differing if before else None, where)
        )
    if not before:
        replay.notes.append("the store has no accounts of this step to compare with")


def _bins(parts: "Sequence[LedgerPart]") -> dict[str, tuple[Any, Any, Any]]:
    """Item -> bin, reward and advantage, rollouts in the order of their ids."""
    found: dict[str, tuple[Any, Any, Any]] = {}
    for part in sorted(parts, key=lambda part: part.rollout_id):
        for one in (*part.trained, *part.excluded):
            name = f"{one.kind} {one.call_id}".rstrip() + f" of rollout {one.rollout_id}"
            credit, advantage = one.credit, one.advantage
            found[name] = (
                getattr(one, "reason", "trained"),
                credit and credit.reward,
                advantage and advantage.value,
            )
    return found


def _is_near(was: Any, now: Any, tolerance: float) -> bool:
    is_number = isinstance(was, int | float) and isinstance(now, int | float)
    return is_number and math.isclose(was, now, rel_tol=tolerance, abs_tol=_TINY)
