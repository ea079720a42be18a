"""How a run went, in lines for a terminal."""

import math
import os
import shlex
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from statistics import fmean

from agl.algorithm.run_result import FailureCause
from agl.plugins.registry import names_in
from agl.utils.text import printable
from agl_inspect.figures import entry, number
from agl_inspect.report.curve import HELD_OUT, text_curve
from agl_inspect.runs.facts import HeldOut, RunFacts
from agl_runs.folders import RUNS, STORES
from agl_runs.result import summary_in

LABEL = 13
"""Columns of the names at the left."""
MOST_FAILURES = 5
LONGEST_MESSAGE = 200
"""Characters of an error's message."""
WIDEST_CURVE = 100


def summary_text(
    facts: RunFacts, width: int, report: Path | None = None, names: Collection[str] | None = None
) -> str:
    """The summary of a run: of its entries those with these names, None for all.

    Words longer than ``width``, as paths may be, stay whole. ``report`` is the page with more.
    """
    lines: list[str] = []
    for name, text in _entries(facts, report):
        if names is not None and name not in names:
            continue
        if name == "curve":
            lines += ["", *_curve(facts, min(width, WIDEST_CURVE)), ""]
            continue
        text = printable(text).replace("\n", " ")
        is_command = text.startswith("agl ")  # which a shell reads from one line
        lines += entry(name, text, LABEL + len(text) if is_command else width, LABEL)
    return "\n".join(lines)


def _entries(facts: RunFacts, report: Path | None) -> Iterator[tuple[str, str]]:
    result = facts.result
    took = "" if facts.seconds is None else f" after {took_text(facts)}"
    starts = len(facts.run.generations) if facts.run else 1
    how_long = f"{facts.state}{took}{f' in {starts} starts' if starts > 1 else ''}"
    yield "run", ", ".join(filter(None, [result.run_id, result.algorithm, how_long]))
    if why := why_it_ended(facts):
        yield "because", why
    if facts.held_out:
        yield "held-out", held_out_text(facts)
    if len(facts.curve) > 1:
        (_, first), (step, last) = facts.curve[0], facts.curve[-1]
        yield "reward", f"{number(first)} -> {number(last)} in training, over {step} steps"
    elif result.mean_reward is not None:
        how_many = f"{len(result.rewards)} succeeded rollouts"
        yield "reward", f"{number(result.mean_reward)}, the mean of {how_many} that have one"
    elif result.rollouts and not facts.curve:
        yield "reward", "none: no succeeded agent returned one, or called agl.emit_reward"
    if _curve(facts, WIDEST_CURVE):
        yield "curve", ""
    yield "rollouts", counts_text(result.rollouts or {}) or "none"
    if facts.calls:
        bins = {"trained": facts.calls_trained, **facts.excluded}
        yield "calls", f"{facts.calls:,} of models: {counts_text(bins)}"
    if facts.uncounted:
        where = f"{facts.steps_uncounted}. See: agl rollouts {facts.result.run_id} --step N"
        yield "uncounted", f"{facts.uncounted:,} rollouts that no step has counted: {where}"
    if tokens := tokens_text(facts):
        yield "tokens", tokens
    if times := times_text(facts):
        yield "time", times
    if bias := bias_text(facts):
        yield "bias", bias
    for cause in result.failures[:MOST_FAILURES]:
        yield "failed", failure_text(cause)
    if len(result.failures) > MOST_FAILURES:
        yield "", f"and {len(result.failures) - MOST_FAILURES} more causes, all in the report"
    for finding in facts.findings:
        yield "warning", str(finding)
    if facts.unread:
        yield "unread", facts.unread
    best, start = facts.best_reward, facts.held_out_before and facts.held_out_before.reward
    held_out = "" if best is None else f": held-out {number(best)}"
    if best is not None and start is not None and best < start:
        held_out += f", less than the {number(start)} before training"
    if facts.best_checkpoint and facts.best_checkpoint != facts.checkpoint:
        yield "best", f"{near(facts.best_checkpoint)} (the best{held_out})"
    if facts.checkpoint:
        is_best = facts.checkpoint == facts.best_checkpoint
        best = f", and the best{held_out}" if is_best else ""
        yield "model", f"{near(facts.checkpoint)} (the newest{best})"
    if report is not None:
        yield "report", near(str(report))
    for n, command in enumerate(next_commands(facts)):
        yield "" if n else "next", command


def _curve(facts: RunFacts, width: int) -> list[str]:
    curve, marks = facts.points
    lines = text_curve(curve, marks, width)
    if lines and marks:
        lines[-1] += "" if len(lines[-1]) > width - 14 else f"   {HELD_OUT} held-out"
    return lines


def why_it_ended(facts: RunFacts) -> str:
    """Why it failed, stopped, or ended early; "" where it did not, and where nobody said."""
    error = facts.run.generations[-1].error if facts.run and facts.run.generations else ""
    return error or summary_in(facts.result.folder).get("ended") or ""


def took_text(facts: RunFacts) -> str:
    """How long its starts took; "" where nobody knows."""
    least = "at least " if facts.took_longer else ""
    return "" if facts.seconds is None else f"{least}{duration(facts.seconds)}"


def held_out_text(facts: RunFacts) -> str:
    """Before and after, with how many rollouts each is the mean of."""
    before, after = facts.held_out_before, facts.held_out_after

    def with_n(one: HeldOut) -> str:
        return number(one.reward) + (f" (n={one.rollouts})" if one.rollouts else "")

    if before is None or after is None:
        return "; ".join(f"{with_n(one)} after step {one.step}" for one in facts.held_out[-1:])
    return f"{with_n(before)} before -> {with_n(after)} after step {after.step}"


def counts_text(counts: Mapping[str, int]) -> str:
    """Each with its number, as "3 succeeded, 1 failed"."""
    return ", ".join(f"{n:,} {name}" for name, n in counts.items())


def tokens_text(facts: RunFacts) -> str:
    """Tokens that were given to the model and that it sampled; "" where nobody counted."""
    sampled, given = facts.metrics.total("tokens/sampled"), facts.metrics.total("tokens/given")
    return "" if sampled is None else f"{sampled:,.0f} sampled, {given or 0:,.0f} given"


def times_text(facts: RunFacts) -> str:
    """Where the time went; "" where nobody measured."""
    total = facts.metrics.total
    training = total("time/update") or total("time/train")
    sampling, steps = total("time/sampling"), total("time/step")
    times = {
        "in rollouts": total("time/rollouts"),
        "of sampling in steps": sampling,
        "in training": training,
    }
    shown = ", ".join(f"{duration(n)} {name}" for name, n in times.items() if n is not None)
    is_in_turn = total("time/idle") is None  # else rollouts run while the model is trained
    if sampling is not None and training and steps and is_in_turn:
        shown += f"; {(sampling + training) / steps:.0%} of the time of steps sampled or trained"
    return shown


def bias_text(facts: RunFacts) -> str:
    """How far what failures left out moves rewards, mean over steps; "" where they left nothing."""
    metrics = ("bias", "bias_task", "bias_length", "bias_error")
    found = [[*facts.metrics.series.get(f"failures/{one}", {}).values()] for one in metrics]
    if not all(found):
        return ""
    bias, by_task, by_length, _ = map(fmean, found)
    error, steps = 2 * math.hypot(*found[-1]) / len(found[-1]), len(found[-1])
    return (
        f"{bias:+.2f} deviations of the reward (± {error:.2f}) by what failures left out of "
        f"{steps} step{'s' * (steps > 1)}: {by_task:+.2f} by task, {by_length:+.2f} by length"
    )


def failure_text(cause: FailureCause) -> str:
    """How many attempts failed by it, where, and with which message."""
    said = " ".join(cause.message.split())
    if len(said) > LONGEST_MESSAGE:
        said = f"{said[:LONGEST_MESSAGE]}..."
    at = f" at {cause.place}" if cause.place else ""
    return f"{cause.number} x {cause.boundary}: {cause.type}{at}: {said}"


def next_commands(facts: RunFacts) -> list[str]:
    """What may be typed next, with ids and paths of this run."""
    known, found = names_in("agl.commands"), list[str]()
    for model in dict.fromkeys(filter(None, (facts.best_checkpoint, facts.checkpoint))):
        if "serve" in known and (Path(model) / "config.json").is_file():
            found.append(f"agl serve {shlex.quote(near(model))}")
    if facts.store_path is None:
        return found
    path = Path(facts.store_path)
    is_found = path.absolute().parent.parent == Path(RUNS).absolute() and path.name in STORES
    # With the place at all times: without it a newer run, or one beside this one, would answer.
    where = f" --path {shlex.quote(near(str(path.parent if is_found else path)))}"
    if "://" in facts.store_path:
        where = f" --url {shlex.quote(facts.store_path)}"
    if facts.result.failures:
        found.append(f"agl show {facts.result.failures[0].rollout_id}{where}")
    found.append(f"agl rollouts --sort reward{where}")
    if is_found or facts.run is not None:
        found.append(f"agl report {facts.result.run_id}{'' if is_found else where}")
    return found


def near(path: str) -> str:
    """A path as it is from the working directory, where it lies under that; "" for none."""
    if not path:
        return ""
    return os.path.relpath(path) if Path(path).absolute().is_relative_to(Path.cwd()) else path


def duration(seconds: float) -> str:
    """In words, as people say it."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
