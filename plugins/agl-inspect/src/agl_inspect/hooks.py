"""What agl-inspect adds to every run that is recorded."""

from agl.algorithm.run_result import RunResult
from agl.plugins.hookspecs import hookimpl
from agl.store.base import LightningStore


@hookimpl
async def run_summary(store: LightningStore, result: RunResult, lines: list[str]) -> None:
    """Say more of the result, and write the report into the run's folder."""
    from agl_inspect.report.page import end_of_run

    lines[0] = await end_of_run(store, result)
