"""``agl ledger``: what was trained and what was not, and why."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from agl.cli.ledger_tables import Accounts
    from agl.store.base import LightningStore
    from agl.types import LedgerPart


@click.command("ledger")
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("--url", help="The address of a store server.")
@click.option("--step", type=int, help="Only this step, with a line per excluded call.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def command(run: Path | None, url: str | None, step: int | None, as_json: bool) -> None:
    """Show per step what was trained, and why the rest was not.

    RUN is a run's folder or its store file; without it, the newest run under agl-runs.
    """
    from agl.cli.ledger_tables import columns, listed, remarks, step_rows
    from agl.cli.shared import note, open_store, print_json, print_table

    accounts = asyncio.run(_read(open_store(run, url), step))
    if as_json:
        print_json(_as_json(accounts))
        _fail_on(accounts.problems)
        return
    print_table(columns(accounts), step_rows(accounts))
    if excluded := [row for part in accounts.parts for row in _excluded(part)]:
        click.echo()
        print_table(["rollout_id", "attempt_id", "kind", "span_id", "reason", "detail"], excluded)
    reasons = {reason for counts in accounts.total.excluded.values() for reason in counts}
    if reasons:
        note(listed(reasons))
    for remark in remarks(accounts):
        note(remark)
    _fail_on(accounts.problems)


def _fail_on(problems: list[str]) -> None:
    """The sums are shown; what is not in them is an error all the same."""
    from agl.errors import LedgerError

    if problems:
        more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise LedgerError(
            f"{len(problems)} accounts are in no sum: {'; '.join(problems[:3])}{more}"
        )


async def _read(store: "LightningStore", step: int | None) -> "Accounts":
    from agl.cli.ledger_tables import read_accounts
    from agl.errors import ConfigError

    try:
        accounts = await read_accounts(store, step)
    finally:
        await store.close()
    if step is not None and not accounts.steps and not accounts.problems:
        raise ConfigError(f"the store has no account of step {step}. See: agl ledger")
    return accounts


def _excluded(part: "LedgerPart") -> list[list[object]]:
    return [
        [e.rollout_id, e.attempt_id, e.kind, e.call_id, e.reason, e.detail] for e in part.excluded
    ]


def _as_json(accounts: "Accounts") -> dict[str, Any]:
    return {
        "steps": [
            {
                "run": run or None,
                "algorithm": algorithm or None,
                "step": step,
                "mode": mode or None,
                **sums.as_json(),
            }
            for (run, algorithm, step, mode), sums in accounts.steps.items()
        ],
        "total": accounts.total.as_json(),
        "rollouts_without_account": accounts.without,
        "lost_accounts": accounts.lost,
        "problems": accounts.problems,
        "parts": [part.model_dump(mode="json") for part in accounts.parts],
    }
