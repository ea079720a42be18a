"""How a run went, as one page that needs nothing else: no network, no script.

Whatever agents, models and tasks have said stands in it as text. The policy in its head lets a
browser take the one style sheet within, by its digest, and nothing besides.
"""

import base64
import hashlib
import logging
import shutil
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Final

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
    folder = files("agl_inspect.report")
    style = (folder / "page.css").read_text("utf-8") + STYLE
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return Template((folder / "page.html").read_text("utf-8")).substitute(
        policy=policy,
        title=_text(f"Run {facts.result.run_id}"),
        style=style,
        body="\n".join(_body(facts)),
    )


def _text(value: object) -> str:
    """Text that a browser takes for nothing else."""
    return escape(printable(str(value)))


def _body(facts: RunFacts) -> Iterator[str]:
    result = facts.result
    yield f"<h1>Run {_text(result.run_id)}</h1>"
    state = "bad" if facts.state in ("failed", "died") else "soft"
    about = [_text(result.algorithm), f'<span class="{state}">{_text(facts.state)}</span>']
    if facts.run is not None and len(facts.run.generations) > 1:
        about.append(f"{len(facts.run.generations)} starts")
    yield f'<p class="soft">{" · ".join(filter(None, about))}</p>'
    if why := why_it_ended(facts):
        yield f"<p>{_text(why)}</p>"
    yield f'<div class="figures">{"".join(_figures(facts))}</div>'
    for finding in facts.findings:
        yield (
            f'<div class="warning"><strong>{_text(finding.seen)}.</strong> Likely cause: '
            f"{_text(finding.likely)}. {_text(finding.advice)}</div>"
        )
    if facts.unread:
        yield f'<div class="warning">{_text(facts.unread)}</div>'
    yield from _curve(facts)
    yield from _calls(facts)
    yield from _failures(facts)
    yield from _plots(facts)
    yield from _about(facts)


def _figures(facts: RunFacts) -> Iterator[str]:
    before, after = facts.held_out_before, facts.held_out_after
    if before is not None and after is not None:
        n = f", n={after.rollouts}" if after.rollouts else ""
        yield _figure(f"{number(before.reward)} → {number(after.reward)}", f"held-out reward{n}")
    elif facts.held_out:
        yield _figure(number(facts.held_out[-1].reward), "held-out reward")
    if len(facts.curve) > 1:
        first, last = facts.curve[0][1], facts.curve[-1][1]
        yield _figure(f"{number(first)} → {number(last)}", "reward in training")
    elif facts.result.mean_reward is not None:
        yield _figure(number(facts.result.mean_reward), "mean reward")
    counts = facts.result.rollouts or {}
    rollouts = sum(counts.values())
    failed = rollouts - counts.get("succeeded", 0)
    yield _figure(f"{rollouts:,}", f"rollouts, {failed:,} not succeeded")
    if facts.calls:
        yield _figure(f"{facts.calls_trained:,} of {facts.calls:,}", "model calls trained")
    if facts.seconds is not None:
        yield _figure(took_text(facts), times_text(facts) or "time")
    if (sampled := facts.metrics.total("tokens/sampled")) is not None:
        yield _figure(f"{sampled:,.0f}", "tokens sampled")


def _figure(value: str, name: str) -> str:
    return f'<div class="figure"><b>{_text(value)}</b><span>{_text(name)}</span></div>'


def _curve(facts: RunFacts) -> Iterator[str]:
    if drawn := svg_curve(*facts.points, title="mean reward by step"):
        yield f"<h2>Reward by step</h2>{drawn}"
    if facts.held_out:
        rows = [[one.step, number(one.reward), one.rollouts or ""] for one in facts.held_out]
        table = _table(["after step", "reward", "rollouts"], rows)
        yield f"<details><summary>Held-out evaluations</summary>{table}</details>"


def _calls(facts: RunFacts) -> Iterator[str]:
    if not facts.calls:
        return
    yield "<h2>What became of the model calls</h2>"
    rows = [["trained", f"{facts.calls_trained:,}"]]
    rows += [[reason, f"{n:,}"] for reason, n in facts.excluded.items()]
    yield _table(["", "calls"], rows)


def _failures(facts: RunFacts) -> Iterator[str]:
    if not facts.result.failures:
        return
    yield "<h2>Why attempts failed</h2>"
    rows = [
        [f"{one.number:,}", f"{one.boundary}: {one.type}", one.place, one.message, one.rollout_id]
        for one in facts.result.failures
    ]
    if bias := bias_text(facts):
        yield f"<p>Bias: {_text(bias)}</p>"
    yield _table(["attempts", "cause", "where", "as in", "rollout"], rows)


def _plots(facts: RunFacts) -> Iterator[str]:
    metrics = facts.metrics
    drawn = [
        f"<div><h3>{_text(title)}</h3>{plot}</div>"
        for name, title in metrics.drawn()
        if (plot := svg_curve([*metrics.series[name].items()], [], title=title, key=(name, "")))
    ]
    if drawn:
        yield f'<h2>Metrics</h2><div class="plots">{"".join(drawn)}</div>'


def _about(facts: RunFacts) -> Iterator[str]:
    result = facts.result
    known = {
        "folder": result.folder,
        "store": facts.store_path and near(facts.store_path),
        "best checkpoint": facts.best_checkpoint and near(facts.best_checkpoint),
        "newest checkpoint": facts.checkpoint and near(facts.checkpoint),
        "rollouts": counts_text(result.rollouts or {}),
        "tokens": tokens_text(facts),
    }
    if facts.run is not None:
        known |= {"seed": facts.run.seed, **facts.run.code.origin}
        known |= {f"{name} tasks": each.num_tasks for name, each in facts.run.datasets.items()}
    yield "<h2>About the run</h2>"
    yield _table(None, [[name, value] for name, value in known.items() if value not in (None, "")])
    if commands := next_commands(facts):
        yield f"<h2>Next</h2><pre>{_text(chr(10).join(commands))}</pre>"


def _table(columns: Sequence[str] | None, rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in columns or ())
    body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table>{f"<tr>{head}</tr>" if head else ""}{body}</table></div>'
