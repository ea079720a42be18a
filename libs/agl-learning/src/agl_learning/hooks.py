"""What agl-learning adds to every run that is recorded."""

from agl.algorithm.run_result import RunResult
from agl.plugins.hookspecs import hookimpl
from agl.store.base import LightningStore


@hookimpl
async def run_summary(store: LightningStore, result: RunResult, lines: list[str]) -> None:
    """Add the sums of the ledger, if the run has one."""
    from agl_records.ledger.tables import Accounts

    accounts = await Accounts.read_newest(store, result.run_id or None)
    if (text := accounts.ending()) is not None:
        lines.append(text)
