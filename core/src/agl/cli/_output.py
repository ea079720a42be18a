"""What listings share: a table or JSON on standard output."""

import io
import json
import sys
from collections.abc import Sequence
from typing import Any


def print_json(value: Any) -> None:
    """Write a value as JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write rows as a table; on a terminal long cells are folded, in a pipe lines are as long."""
    from rich import box
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    console = Console()
    if console.is_terminal:
        console.print(table)
        return
    wide = console.options.update(max_width=100_000)
    page = Console(file=io.StringIO(), width=Measurement.get(console, wide, table).maximum)
    with page.capture() as captured:
        page.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())


def note(message: str) -> None:
    """Write a remark on standard error, where progress goes."""
    print(message, file=sys.stderr)
