"""What the end of a run says and writes: a summary, ``report.html`` and the curve."""

import logging
import shutil
from pathlib import Path
from typing import Final

from agl.algorithm.run_result import RunResult
from agl.store.base import LightningStore
from agl_inspect.doctor.prompts import constant_prompts
from agl_inspect.report.curve import svg_curve
from agl_inspect.report.page import page
from agl_inspect.report.text import summary_text
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
