"""``agl ledger``: what was trained and what was not, and why."""

from pathlib import Path

import click

from agl.cli.shared import note, print_json, print_table, read_and_close
from agl.errors import ConfigError
from agl.store.base import LightningStore
from agl_inspect.runs.lookup import store_and_run
from agl_records.calls.sources import by_scope
from agl_records.ledger.tables import Accounts
from agl_records.types import EXCLUSION_REASONS, LedgerError
from agl_views.tables.stores import open_store, store_options


@click.command("ledger")
@click.argument("run", required=False)
@store_options
@click.option("--step", type=int, help="Only this step, with a line per excluded call.")
@click.option("--all", "read_all", is_flag=True, help="All steps, however many.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def command(
    run: str | None,
    path: Path | None,
    url: str | None,
    step: int | None,
    read_all: bool,
    as_json: bool,
) -> None:
    """Show per step what was trained, and why the rest was not.

    Of a store with more than 1,000 accounts only the newest steps are read, and it is said how many
    accounts were left out.

    RUN is a run's id or a part of it, and the others of its store are left out; or a folder or a
    store file. Without it and a store, the newest run under agl-runs.
    """
    where, of = store_and_run(run, (path, url))

    async def read(store: LightningStore) -> Accounts:
        if read_all or step is not None:
            return await Accounts.read(store, step, of)
        return await Accounts.read_newest(store, of)

    accounts = read_and_close(open_store(*where), read)
    problems = accounts.problems
    if step is not None and not accounts.steps and not problems:
        raise ConfigError(
            f"the store has no account of step {step}, which has not ended, or is none. Its "
            f"rollouts, if it has some: agl rollouts --step {step}"
        )
    if as_json:
        steps = [
            {
                "run": run_id or None,
                "algorithm": algorithm or None,
                "step": number,
                "mode": mode or None,
                **sums.as_json(),
            }
            for (run_id, algorithm, number, mode), sums in accounts.steps.items()
        ]
        print_json(
            {
                "steps": steps,
                "total": accounts.total.as_json(),
                "accounts_left_out": accounts.left_out,
                "rollouts_without_account": accounts.without,
                "steps_without_account": accounts.steps_without,
                "lost_accounts": accounts.lost,
                "problems": problems,
                "parts": [part.model_dump(mode="json") for part in accounts.parts],
            }
        )
    else:
        _print(accounts)
    # The sums are shown; what is not in them is an error all the same.
    if problems:
        more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise LedgerError(
            f"{len(problems)} accounts are in no sum: {'; '.join(problems[:3])}{more}"
        )


def _print(accounts: Accounts) -> None:
    if accounts.without and not (accounts.steps or accounts.lost or accounts.problems):
        what = "rollouts, and none is in an account: an algorithm that trains a model writes one"
        note(f"{accounts.without} {what} for each rollout of a step, when the step ends")
        return
    click.echo(accounts.text())
    excluded = [one for part in accounts.parts for one in part.excluded]
    if excluded:
        click.echo()
        rows = [
            [e.rollout_id, e.attempt_id, e.kind, e.call_id, e.reason, e.detail] for e in excluded
        ]
        print_table(["rollout_id", "attempt_id", "kind", "span_id", "reason", "detail"], rows)
    met = {name for _, name in accounts.total}
    for reason, meaning in EXCLUSION_REASONS.items():
        if reason in met:
            note(f"{reason}: {meaning}")
    unread = [one.detail for one in excluded if one.reason == "unrecognised_span"]
    for remark in by_scope(unread):
        note(remark)
    # What is in no sum.
    if accounts.left_out:
        what = "accounts of earlier steps were not read; --all reads them, --step one step"
        note(f"{accounts.left_out} {what}")
    if accounts.without:
        what = f"rollouts that no step has counted: {accounts.steps_without}"
        note(f"{accounts.without} {what}. See: agl rollouts --step N")
    if accounts.lost:
        what = "accounts are in no sum: their run was killed, and went on from a checkpoint before"
        note(f"{accounts.lost} {what} them")
