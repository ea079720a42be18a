"""``agl report``: how a run went, said once more, and its page written anew."""

import shutil
from dataclasses import replace
from pathlib import Path

import click

from agl.cli.shared import print_json
from agl.errors import ConfigError
from agl_inspect.report.page import write_report
from agl_inspect.report.text import summary_text
from agl_inspect.runs.facts import run_facts
from agl_inspect.runs.lookup import file_of, find_run, read_store_of, runs_of_store
from agl_runs.finding import last_time
from agl_runs.local_runs import whole
from agl_views.tables.stores import store_options


@click.command("report")
@click.argument("run", required=False)
@store_options
@click.option("--out", type=click.Path(path_type=Path), help="Write the page into this folder.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON, and no page.")
def command(
    run: str | None, path: Path | None, url: str | None, out: Path | None, as_json: bool
) -> None:
    """Sum up RUN as its end did, and write its report.html anew.

    RUN is a run's id, a part of it, its folder or its store file; without it, the newest run.
    """
    where = path, url
    if run is None:
        known = sorted(runs_of_store(*where), key=last_time)
        if not known:
            raise ConfigError("there is no run here. See: agl runs")
        found = whole(known[-1])
    else:
        found = find_run(run, where)
    facts = read_store_of(found, where, lambda store: run_facts(store, run=found))
    if url is None:  # what was read is a copy
        facts = replace(facts, store_path=str(file_of(found, path)))
    if as_json:
        print_json(facts.as_json())
        return
    folder = out or facts.result.folder
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    report = None if folder is None else write_report(facts, folder)
    click.echo(summary_text(facts, shutil.get_terminal_size().columns, report))
