"""How a run went, as one page that needs nothing else: no network, no script.

Whatever agents, models and tasks have said stands in it as text. The policy in its head lets a
browser take the one style sheet within, by its digest, and nothing besides.
"""

import base64
import hashlib
import logging
import shutil
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from agl.algorithm.run_result import RunResult
from agl.store.base import LightningStore
from agl.utils.text import printable
from agl_inspect.doctor.grades import constant_prompts
from agl_inspect.figures import number
from agl_inspect.report.curve import STYLE, svg_curve
from agl_inspect.report.text import (
    bias_text,
    counts_text,
    near,
    next_commands,
    summary_text,
    times_text,
    tokens_text,
    took_text,
    why_it_ended,
)
from agl_inspect.runs.facts import RunFacts, run_facts
from agl_runs.files import write_whole

logger = logging.getLogger("agl.inspect")

REPORT: Final = "report.html"
CURVE: Final = "reward.svg"


async def end_of_run(store: LightningStore, result: RunResult) -> str:
    """The summary of a run that has ended; its report is written into its folder, if it has one."""
    facts = await run_facts(store, result=result)
    report = None
    if result.folder is not None:
        try:
            report = write_report(facts, result.folder)
        except OSError as error:  # a full disk, say; the summary is the more needed
            logger.warning("run %s has no report: %s", result.run_id, error)
    said = summary_text(facts, shutil.get_terminal_size().columns, report)
    if result.rewards and not any(result.rewards.values()):
        latest = await store.get_latest_resources()
        for name in constant_prompts(latest.resources if latest else {}):
            said += f"\nwarning      every reward is 0, and the prompt {name!r} has no placeholder"
    return said


def write_report(facts: RunFacts, folder: Path) -> Path:
    """Write the page, and the curve where there is one, into a folder; where the page is."""
    title = f"mean reward of run {facts.result.run_id}"
    if drawn := svg_curve(*facts.points, title=title, alone=True):
        write_whole(folder / CURVE, drawn)
    write_whole(folder / REPORT, page(facts))
    return folder / REPORT


def page(facts: RunFacts) -> str:
    """The page."""
    style = files("agl_inspect.report").joinpath("page.css").read_text("utf-8") + STYLE
    result, metrics = facts.result, facts.metrics
    plots = [
        (title, svg_curve([*metrics.series[name].items()], [], title=title, key=(name, "")))
        for name, title in metrics.drawn()
    ]
    about = {
        "folder": result.folder,
        "store": facts.store_path and near(facts.store_path),
        "best checkpoint": facts.best_checkpoint and near(facts.best_checkpoint),
        "newest checkpoint": facts.checkpoint and near(facts.checkpoint),
        "rollouts": counts_text(result.rollouts or {}),
        "tokens": tokens_text(facts),
    }
    if facts.run is not None:
        about |= {"seed": facts.run.seed, **facts.run.code.origin}
        about |= {f"{name} tasks": each.num_tasks for name, each in facts.run.datasets.items()}
    templates = Environment(
        loader=PackageLoader("agl_inspect.report", "."),
        autoescape=True,  # what stands in it is text that a browser takes for nothing else
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return templates.get_template("page.html").render(
        digest=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        style=Markup(style),
        facts=facts,
        result=result,
        why=why_it_ended(facts),
        figures=[*_figures(facts)],
        curve=Markup(svg_curve(*facts.points, title="mean reward by step")),
        held_out=[[one.step, number(one.reward), one.rollouts or ""] for one in facts.held_out],
        calls=[
            ["trained", f"{facts.calls_trained:,}"],
            *([reason, f"{n:,}"] for reason, n in facts.excluded.items()),
        ],
        failures=[
            [f"{n.number:,}", f"{n.boundary}: {n.type}", n.place, n.message, n.rollout_id]
            for n in result.failures
        ],
        bias=bias_text(facts),
        plots=[(title, Markup(plot)) for title, plot in plots if plot],
        about=[(name, value) for name, value in about.items() if value not in (None, "")],
        commands=next_commands(facts),
    )


def _figures(facts: RunFacts) -> Iterator[tuple[str, str]]:
    before, after = facts.held_out_before, facts.held_out_after
    if before is not None and after is not None:
        n = f", n={after.rollouts}" if after.rollouts else ""
        yield (f"{number(before.reward)} → {number(after.reward)}", f"held-out reward{n}")
    elif facts.held_out:
        yield (number(facts.held_out[-1].reward), "held-out reward")
    if len(facts.curve) > 1:
        first, last = facts.curve[0][1], facts.curve[-1][1]
        yield (f"{number(first)} → {number(last)}", "reward in training")
    elif facts.result.mean_reward is not None:
        yield (number(facts.result.mean_reward), "mean reward")
    counts = facts.result.rollouts or {}
    rollouts = sum(counts.values())
    failed = rollouts - counts.get("succeeded", 0)
    yield (f"{rollouts:,}", f"rollouts, {failed:,} not succeeded")
    if facts.calls:
        yield (f"{facts.calls_trained:,} of {facts.calls:,}", "model calls trained")
    if facts.seconds is not None:
        yield (took_text(facts), times_text(facts) or "time")
    if (sampled := facts.metrics.total("tokens/sampled")) is not None:
        yield (f"{sampled:,.0f}", "tokens sampled")
