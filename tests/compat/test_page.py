"""The page for who comes from Agent Lightning says all that is refused, and nothing else.

That it is refused so is ``test_names.py``.
"""

import re
from pathlib import Path

import pytest

from agentlightning._refused import REFUSED

from .test_names import FACTS

pytestmark = pytest.mark.plugins

PAGE = Path(__file__).parents[2] / "docs/howto/from-agent-lightning.md"


def rows() -> list[list[str]]:
    """The names of each row of the table of refused names, wildcards not yet filled."""
    table = PAGE.read_text("utf-8").partition("## Names that are refused")[2]
    return [re.findall(r"`([^`]+)`", line.split(" | ")[0]) for line in table.splitlines()[7:]]


def listed() -> set[str]:
    """``module.name`` of all that the table says."""
    said = [name for row in rows() for name in row]
    names = {name for name in said if not name.endswith(".*")}
    for wildcard in said:
        module = wildcard.removesuffix(".*")
        if module != wildcard:
            names |= {f"{module}.{name}" for name in names_of(module) & {*REFUSED}}
    return names


def names_of(module: str) -> set[str]:
    """Those that a module of 0.3 has."""
    return set(FACTS[f"agentlightning.{module}".rstrip(".")]["names"])


def test_page_lists_what_is_refused_and_nothing_else() -> None:
    said = [name.rpartition(".") for name in listed()]
    assert {name for _, _, name in said} == {*REFUSED}
    assert [name for path, _, name in said if name not in names_of(path)] == []


def test_page_begins_with_the_two_commands() -> None:
    block = PAGE.read_text("utf-8").split("```")[1]
    commands = ["pip uninstall agentlightning", "python install.py agl-agentlightning"]
    assert block.splitlines() == ["bash", *commands]
