"""``agl doctor``: what could be learned, before anything is spent."""

import logging
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import psutil
from rich.console import Console

from agl.cli.plugins import diagnose as diagnose_plugins
from agl.cli.shared import note, print_json, print_table
from agl.runner.heartbeat import gpu_stats
from agl.utils.logs import setup_module_logging
from agl_inspect.doctor.findings import Diagnosis, Finding, diagnose
from agl_inspect.doctor.grades import USES
from agl_inspect.doctor.trial import try_once
from agl_inspect.figures import entry, number, rounded
from agl_inspect.graders.audit import Audit, audit
from agl_runs.config.file import load_config
from agl_runs.description import versions_of

DEFAULT = Path("agl.yaml")
LIBRARIES = ("torch", "transformers", "trl", "peft", "vllm", "verl", "ray", "litellm", "openai")
"""What trains, serves or is called, and decides by its version what works."""


@click.command("doctor", context_settings={"show_default": True})
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.argument("overrides", nargs=-1, metavar="[FILE|KEY=VALUE]...")
@click.option("--task", type=click.IntRange(min=0), default=0, help="Which task, from 0.")
@click.option(
    "--tokenizer", help="Folder or name: its chat template is tried on calls without token ids."
)
@click.option(
    "--graders", is_flag=True, help="See whether wrong answers are paid, in place of the rest."
)
@click.option(
    "--tasks",
    type=click.IntRange(min=1),
    default=10,
    help="With --graders: so many tasks, evenly spread.",
)
@click.option(
    "--solution", help="With --graders: where a task has its solution.  [default: solution, answer]"
)
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def command(
    file: Path | None,
    overrides: tuple[str, ...],
    task: int,
    tokenizer: str | None,
    graders: bool,
    tasks: int,
    solution: str | None,
    as_json: bool,
) -> None:
    """Run one rollout of FILE, then a few at once, and say what could be learned from it.

    Without FILE it is agl.yaml. If there is no such file either, the machine is looked at: Python,
    memory, disk, GPUs, the versions of what trains and serves, and packages that do not load.

    Per model call: its grade (A: token-exact, can train weights; B: text with a known chat
    template, can be fine-tuned on; C: text only, for prompt optimisation and preference pairs), its
    reward and by which rule, or why it is excluded. Then what was found, with the fix.
    The exit code is 1 when nothing could be learned.

    With --graders the agent runs with models that know nothing (silent, repeating the question,
    guessing, all form, listing everything) and with one that knows the solution. The exit code is 1
    when a wrong answer is paid as if it were right.
    """
    if file is None and not DEFAULT.exists():
        _look_at_machine(as_json)
        return
    loaded = load_config(file or DEFAULT, overrides)
    # What the log would say of this rollout, the findings say.
    setup_module_logging("CRITICAL", name="agl")
    logging.getLogger("agl").propagate = False
    if graders:
        note(f"running up to {tasks} tasks with each kind of answer ...")
        _show_audit(audit(loaded, tasks, solution), as_json)
        return
    note("running one rollout, then a few at once ...")
    diagnosis = diagnose(try_once(loaded, task), tokenizer)
    if as_json:
        print_json(asdict(diagnosis))
    else:
        _show(diagnosis)
    click.get_current_context().exit(0 if diagnosis.trainable else 1)


def _show_audit(found: Audit, as_json: bool) -> None:
    if as_json:
        print_json({**asdict(found), "is_sound": found.is_sound})
    else:
        columns = ["answer", "a model that", "rollouts", "failed", "mean reward", "most"]
        rows = [
            [
                one.answer,
                one.what,
                len(one.rewards) + len(one.failures) + one.num_without,
                len(one.failures) or "",
                *rounded([one.mean, max(one.rewards, default=None)]),
            ]
            for one in found.paid
        ]
        print_table(columns, rows)
        click.echo()
        _say_findings(found.findings)
        sound = "can be trained on" if found.is_sound else "would be trained to do something else"
        _say("verdict", f"an agent {sound}, as {found.num_tasks} tasks say")
    click.get_current_context().exit(0 if found.is_sound else 1)


def _look_at_machine(as_json: bool) -> None:
    note(
        f"there is no {DEFAULT} here, so this is about the machine; agl doctor FILE runs a rollout"
    )
    rows = diagnose_plugins(check=True)
    problems = [
        f"{row.kind} {row.name} ({row.distribution}): {row.state}: {row.cause}"
        for row in rows
        if row.state in ("broken", "duplicate", "unknown group")
    ]
    found: dict[str, Any] = {
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "memory": f"{psutil.virtual_memory().available / 2**30:.1f} GiB free",
        "disk": f"{shutil.disk_usage('.').free / 2**30:.1f} GiB free in {os.getcwd()}",
        "gpus": _gpus(),
        "packages": {row.distribution: row.version for row in rows},
        "libraries": versions_of(LIBRARIES),
        "without extra": [row.name for row in rows if row.state == "needs extra"],
        "problems": problems,
    }
    if as_json:
        print_json(found)
    else:
        for name, value in found.items():
            lines = [f"{n} {v}" for n, v in value.items()] if isinstance(value, dict) else value
            if name != "problems":
                _say(name, ", ".join(lines) or "none" if isinstance(lines, list) else str(lines))
        for problem in problems:
            _say("error", problem)
        _say("verdict", "some packages do not load" if problems else "all packages load")
    click.get_current_context().exit(1 if problems else 0)


def _gpus() -> list[str]:
    try:
        found = gpu_stats()
    except (OSError, subprocess.SubprocessError):  # no nvidia-smi, or no driver under it
        return []
    return [
        f"{one['name']}, {one['memory.used']} of {one['memory.total']} MiB used" for one in found
    ]


def _show(diagnosis: Diagnosis) -> None:
    rollout = diagnosis.rollout
    if rollout:
        click.echo(f"rollout    {rollout['status']}, mode {rollout['mode']}: {rollout['input']}")
        given = ", ".join(f"{r['value']:.4g} ({r['name']})" for r in diagnosis.rewards)
        click.echo(f"rewards    {given or 'none'}\n")
    if diagnosis.calls:
        columns = ["call", "agent", "model", "tokens", "grade", "reward", "rule", "row or reason"]
        rows = [
            [
                *(call.call_id, call.agent_name, call.model),
                f"{call.prompt_tokens or '?'}+{call.response_tokens or '?'}",
                *(call.grade, number(call.reward, "")),
                f"{call.rule}: {call.credit}" if call.rule else "",
                call.excluded or ("" if call.row is None else f"row {call.row}"),
            ]
            for call in diagnosis.calls
        ]
        print_table(columns, rows)
        lacks = [f"{call.grade}: {call.because}" for call in diagnosis.calls if call.because]
        for because in dict.fromkeys(lacks):
            click.echo(f"not better than {because}")
        click.echo()
    _say_findings(diagnosis.findings)
    if diagnosis.at_once:
        _say("at once", diagnosis.at_once)
    grades = [call.grade for call in diagnosis.calls]
    met = {letter: use for letter, use in USES.items() if letter in grades}
    uses = "; ".join(f"{grades.count(letter)} {letter} ({use})" for letter, use in met.items())
    done = "learned" if diagnosis.learns else "measured"
    verdict = f"something can be {done}" if diagnosis.trainable else f"nothing could be {done}"
    if_ = ", if rewards come to differ" if diagnosis.equal_rewards else ""
    _say("verdict", f"{verdict} by {diagnosis.algorithm!r}{if_}; calls: {uses or 'none'}")


def _say_findings(findings: Iterable[Finding]) -> None:
    for finding in findings:
        _say(finding.level, f"{finding.code}: {finding.message}")
        if finding.fix:
            _say("", f"-> {finding.fix}")


def _say(name: str, text: str) -> None:
    """An entry, as wide as the terminal; in a pipe it is one line."""
    width = shutil.get_terminal_size().columns if Console().is_terminal else 100_000
    click.echo("\n".join(entry(name, " ".join(text.split()), width, 11)))
