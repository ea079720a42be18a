"""Each promise of docs/explanation/trust.md names a test, and that test is there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs/explanation/trust.md").read_text(encoding="utf-8")
TABLES = PAGE.split("| promise | shown by |\n|---|---|\n")[1:]
ROWS = [row for table in TABLES for row in table.partition("\n\n")[0].splitlines()]


@cache
def names_in(path: Path) -> set[str]:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {one.name for one in body if isinstance(one, functions) and one.name[:5] == "test_"}


def test_the_page_has_promises():
    assert len(ROWS) >= 50
    assert PAGE.count("::") == len(ROWS), "a test is named outside of a table of promises"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.strip("| ").partition(" |")[0])
def test_a_promise_is_shown_by_a_test(row):
    named = re.fullmatch(r"\| [^|]+ \| `(tests/[\w/]+\.py)::(test_\w+)` \|", row)
    assert named, "write: | promise | `tests/FILE.py::test_NAME` |"
    assert named[2] in names_in(REPOSITORY / named[1])
