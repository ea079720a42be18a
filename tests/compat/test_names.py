"""Every module path and public name of 0.3 is supported, or refused by name."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.interpreter import python

from agentlightning._errors import RefusedNameError
from agentlightning._refused import REFUSED

pytestmark = pytest.mark.plugins

FACTS: dict[str, Any] = json.loads(Path(__file__).with_name("names_of_0_3.json").read_text("utf-8"))
TYPING = ("ParamSpec", "TypeVar")


def outcome(module: str, name: str) -> str:
    """Supported, refused or missing."""
    found = import_module(module)
    try:
        getattr(found, name)
    except RefusedNameError as error:
        said = f"{name} is not in agl: " in str(error) and len(str(error)) > 40
        return "refused" if said else "missing"
    except AttributeError:
        return "missing"
    return "supported"


def names_of(module: str) -> list[str]:
    """Without the marks of type checkers, which every module has."""
    names = FACTS[module]["names"].items()
    return [name for name, one in names if name != "TYPE_CHECKING" and one["kind"] not in TYPING]


@pytest.mark.parametrize("module", FACTS)
def test_every_name_of_a_module_is_there_or_refused_by_name(module: str) -> None:
    outcomes = {name: outcome(module, name) for name in names_of(module)}
    assert [name for name, what in outcomes.items() if what == "missing"] == []


def test_what_is_refused_was_there() -> None:
    for name in REFUSED:
        modules = [module for module in FACTS if name in FACTS[module]["names"]]
        assert {outcome(module, name) for module in modules} == {"refused"}, name


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has after it."""
    program = f"{statement}\nimport sys\nprint(*sys.modules, sep='\\n')"
    return set(python("-c", program, check=True).stdout.split())


def test_importing_agentlightning_loads_no_more_than_importing_agl() -> None:
    more = loaded_by("import agentlightning") - loaded_by("import agl")
    assert more == {"agentlightning", "agentlightning._names"}


def test_a_name_of_the_core_loads_no_plugin() -> None:
    names = "InMemoryLightningStore, LitAgent, emit_reward, rollout, Span"
    loaded = loaded_by(f"from agentlightning import {names}")
    assert not {name for name in loaded if name.startswith("agl_")}
    assert not loaded & {"agentops", "openai", "torch", "litellm", "fastapi", "uvicorn"}
