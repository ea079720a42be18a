"""The fixtures that plugin authors get with agl-core."""

import re
import textwrap
from pathlib import Path

import pytest
from tests.interpreter import python

from agl_testing import contract


def test_fixtures_import_nothing_before_a_test_asks():
    code = """
import sys, agl_testing.fixtures
heavy = {"pydantic", "pluggy", "aiohttp", "fastapi", "agl.plugins.hooks", "agl.store"}
print(sorted(heavy & set(sys.modules)))
"""
    done = python("-c", code, check=True)
    # pytest itself brings pluggy.
    assert done.stdout.split() == ["['pluggy']"]


def test_tracer_contract_runs_without_options_of_pytest(tmp_path):
    (tmp_path / "test_mine.py").write_text(
        "from agl_testing.tracer_contract import TracerContract\n"
        "class TestMine(TracerContract):\n"
        "    component = 'otel'\n"
    )
    options = ("-q", "-c", "/dev/null", "-p", "no:cacheprovider", "-k", "emitters or own_task")
    done = python("-m", "pytest", *options, "test_mine.py", cwd=tmp_path)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


PAGE = (Path(__file__).parents[3] / "docs/howto/write-a-plugin.md").read_text(encoding="utf-8")
ON_THE_PAGE = next(
    textwrap.indent(block, "    ")
    for block in re.findall(r"```python[^\n]*\n(.*?)```", PAGE, re.S)
    if "StoreContract" in block
)


@pytest.mark.parametrize(
    ("written", "mine", "some"),
    [
        (ON_THE_PAGE, "", "empty_dequeue"),
        (contract.__doc__, "from agl_adapters import TraceToRows as MyAdapter", "changed"),
    ],
    ids=["page", "docstring"],
)
@pytest.mark.plugins
def test_suite_runs_in_the_project_of_an_author_as_it_is_documented(tmp_path, written, mine, some):
    """Without any option of pytest: those of this repository are not theirs."""
    for module in re.findall(r"agl_adapters|agl_gateway", mine):
        pytest.importorskip(module)
    code = [line[4:] for line in written.splitlines() if line.startswith("    ") or not line]
    (tmp_path / "test_mine.py").write_text("\n".join(["import agl", mine, *code]))
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", some, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " skipped" not in done.stdout
