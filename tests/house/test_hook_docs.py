"""Every hook is specified, documented with a running example, and tested by name."""

import inspect
import re
from pathlib import Path

import pytest
from tests.interpreter import python

from agl.plugins import hookspecs
from agl.plugins.hooks import HookManager

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "reference" / "hooks.md").read_text(encoding="utf-8")
TESTS = "".join(
    path.read_text(encoding="utf-8") for path in (REPOSITORY / "tests/core").glob("test_hooks*.py")
)
HOOKS = sorted(HookManager().arguments)


def section(hook: str) -> str:
    found = re.search(rf"^## {hook}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"docs/reference/hooks.md has no section {hook!r}"
    return found.group(1)


def test_page_has_the_hooks_that_there_are():
    assert sorted(re.findall(r"^## (\w+)$", PAGE, re.MULTILINE)) == HOOKS


@pytest.mark.parametrize("hook", HOOKS)
def test_spec_says_when_it_is_called_and_it_or_its_module_describes_each_argument(hook):
    function = getattr(hookspecs, hook)
    doc = inspect.getdoc(function) or ""
    assert re.search(r"^Called: \S", doc, re.MULTILINE)
    for name in inspect.signature(function).parameters:
        assert f"``{name}``" in (hookspecs.__doc__ or "") or re.search(
            rf"^    {name}: \S", doc, re.MULTILINE
        ), f"{hook}: {name!r} has no text"


@pytest.mark.parametrize("hook", HOOKS)
def test_page_has_the_exact_signature(hook):
    signature = str(inspect.signature(getattr(hookspecs, hook))).replace("'", "")
    assert f"```text\n{hook}{signature}\n```" in section(hook)


@pytest.mark.parametrize("hook", HOOKS)
def test_example_of_the_page_runs_and_prints_what_it_says(hook):
    [example] = re.findall(r"```python\n(.*?)```", section(hook), re.DOTALL)
    assert f"def {hook}(" in example
    expected = re.findall(r"^#> (.*)$", example, re.MULTILINE)
    assert expected
    done = python("-c", example)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == expected


@pytest.mark.parametrize("hook", HOOKS)
def test_a_test_is_named_after_the_hook(hook):
    assert re.search(rf"^(async )?def test_{hook}\w*\(", TESTS, re.MULTILINE)
