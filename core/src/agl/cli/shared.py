"""What commands share, those of plugins too: tables and JSON, remarks.

Data goes to standard output; remarks and progress to standard error.
"""

import io
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from agl.store.base import LightningStore

T = TypeVar("T")
GAP = 2
"""Blanks between the columns of a table."""
NARROWEST, LONGEST_WORD = 20, 40
"""Characters: to so many columns of long texts shrink, and longer words may be broken."""


def _set_up_log(ctx: click.Context, param: click.Parameter, verbose: bool) -> None:
    from agl.utils.logs import setup_logging

    # A line for each request is too much even for those who want to see all.
    quiet: dict[str, int | str] = {"agl.http": "INFO"}
    setup_logging("DEBUG" if verbose else "INFO", submodule_levels=quiet)


verbose_option = click.option(
    *("-v", "--verbose"),
    is_flag=True,
    expose_value=False,
    callback=_set_up_log,
    help="Log spans and adapted data of each rollout, too.",
)

# --- writing


def print_json(value: Any) -> None:
    """Write a value as JSON."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], **how: Any) -> None:
    """Write rows as a table; see ``table_text``."""
    click.echo(table_text(columns, rows, **how))


def table_text(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    less: Sequence[str] = (),
    cut: bool = False,
) -> str:
    """Rows as a table, as wide as the terminal at most; in a pipe nothing is left out or folded.

    Args:
        columns: Their heads.
        rows: A cell for each.
        less: Columns that are left out on a narrow terminal, the first of them first.
        cut: Whether long texts are cut with a mark, and not folded. Ids and numbers stay whole.
    """
    from rich.cells import cell_len

    from agl.utils.text import printable

    given = [["" if x is None else printable(str(x)) for x in row] for row in (columns, *rows)]
    if not (sys.stdout.isatty() or os.environ.get("FORCE_COLOR")):  # without rich, a line per row
        given = [[" ".join(one.splitlines()).expandtabs() for one in row] for row in given]
        wide = [max(map(cell_len, column)) for column in zip(*given, strict=True)]
        put = [map(lambda one, n: one + " " * (n - cell_len(one)), row, wide) for row in given]
        lines = ["  ".join(row).rstrip() for row in put]
        lines[1:1] = ["─" * (sum(wide) + GAP * (len(wide) - 1))]
        return "\n".join(lines if any(columns) else lines[2:])
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    page, width = io.StringIO(), Console().width
    table = [[*map(Text, row)] for row in given]
    wide = [max(cell.cell_len for cell in column) for column in zip(*table, strict=True)]
    # An id that is broken in two cannot be copied; texts of several words may be.
    soft = [
        any(len(one) > LONGEST_WORD or (len(one) > 20 and " " in one.plain) for one in column)
        for column in zip(*table[1:], strict=True)
    ] or [False] * len(wide)
    least = [min(n, NARROWEST) if may else n for n, may in zip(wide, soft, strict=True)]
    shown = list(range(len(wide)))

    def too_wide(widths: list[int]) -> bool:
        return sum(widths[n] + GAP for n in shown) - GAP > width

    for name in less:
        if too_wide(least):
            shown = [n for n in shown if columns[n] != name]
    while too_wide(wide) and (may := [n for n in shown if wide[n] > least[n]]):
        wide[max(may, key=wide.__getitem__)] -= 1
    if out := [name for n, name in enumerate(columns) if n not in shown]:
        them = "it" if len(out) == 1 else "them"
        note(f"no room for {', '.join(out)}: a wider terminal or --json shows {them}")
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    made.show_header = any(columns)
    how: Any = {"no_wrap": cut, "overflow": "ellipsis" if cut else "fold"}
    for n in shown:
        made.add_column(columns[n], width=wide[n], **how)
    for row in table[1:]:
        made.add_row(*(row[n] for n in shown))
    Console(file=page, width=width, force_terminal=True).print(made)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines())


def note(message: str) -> None:
    """Write a remark on standard error, where progress goes."""
    from agl.utils.logs import tell

    tell(message)


def read_and_close(store: "LightningStore", read: "Callable[[LightningStore], Awaitable[T]]") -> T:
    """What ``read`` finds in a store, which is closed afterwards."""
    import asyncio

    async def read_then_close() -> Callable[[], T]:
        try:
            found = await read(store)
            return lambda: found  # all of a bare result would be written out by asyncio.run
        finally:
            await store.close()

    return asyncio.run(read_then_close())()
