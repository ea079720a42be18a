"""What commands share, those of plugins too: tables and JSON, remarks.

Data goes to standard output; remarks and progress to standard error.
"""

import json
import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from agl.store.base import LightningStore

T = TypeVar("T")
GAP = 2
"""Blanks between the columns of a table."""


def print_json(value: Any) -> None:
    """Write a value as JSON."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, cut: bool = False
) -> None:
    """Write rows as a table; see ``table_text``."""
    click.echo(table_text(columns, rows, cut=cut))


def table_text(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, cut: bool = False
) -> str:
    """Rows as a table, a line for each; nothing is left out.

    With ``cut`` a terminal gets lines of its width, with a mark where the rest is cut off.
    """
    from rich.cells import cell_len, set_cell_size

    from agl.utils.text import printable

    given = [["" if x is None else printable(str(x)) for x in row] for row in (columns, *rows)]
    given = [[" ".join(one.splitlines()).expandtabs() for one in row] for row in given]
    wide = [max(map(cell_len, column)) for column in zip(*given, strict=True)]
    put = [map(lambda one, n: one + " " * (n - cell_len(one)), row, wide) for row in given]
    lines = ["  ".join(row).rstrip() for row in put]
    lines[1:1] = ["─" * (sum(wide) + GAP * (len(wide) - 1))]
    if cut and (sys.stdout.isatty() or os.environ.get("FORCE_COLOR")):
        width = shutil.get_terminal_size().columns
        lines = [x if cell_len(x) <= width else set_cell_size(x, width - 1) + "…" for x in lines]
    return "\n".join(lines if any(columns) else lines[2:])


def note(message: str) -> None:
    """Write a remark on standard error, where progress goes."""
    from agl.utils.logs import tell

    tell(message)


def read_and_close(store: "LightningStore", read: "Callable[[LightningStore], Awaitable[T]]") -> T:
    """What ``read`` finds in a store, which is closed afterwards."""
    import asyncio

    async def read_then_close() -> T:
        try:
            return await read(store)
        finally:
            await store.close()

    return asyncio.run(read_then_close())
