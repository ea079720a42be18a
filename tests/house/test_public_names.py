"""Public is what the reference page lists, and every name of it can be imported."""

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest
from tests.interpreter import python

import agl
from agl.plugins.registry import GROUPS
from agl.utils.catalogue import public_names

REPOSITORY = Path(__file__).parents[2]
REFERENCE = REPOSITORY / "docs" / "reference" / "public-names.md"


def test_every_public_name_can_be_imported_and_none_is_a_module():
    for name in agl.__all__:
        assert getattr(agl, name) is not None, name
        assert not inspect.ismodule(getattr(agl, name)), name


def test_dir_lists_the_public_names():
    assert set(agl.__all__) <= set(dir(agl))


def test_submodules_are_attributes():
    for name in ("types", "store", "adapter", "emitter", "semconv", "trainer"):
        assert getattr(agl, name) is import_module(f"agl.{name}")


def test_reference_page_lists_exactly_the_public_names():
    listed = set(re.findall(r"^\| `([A-Za-z_]+)` \|", REFERENCE.read_text(), re.M))
    assert listed == set(agl.__all__) - {"__version__"}


@pytest.mark.plugins
def test_generated_pages_are_what_the_code_says():
    for plugin in ("agl_adapters", "agl_gateway", "agl_torch"):
        pytest.importorskip(plugin)
    checked = python(REPOSITORY / "docs" / "generate.py", "--check")
    assert checked.returncode == 0, checked.stderr


PLUGIN_PAGE = (REPOSITORY / "docs/howto/write-a-plugin.md").read_text(encoding="utf-8")


def test_authors_find_every_group_and_only_public_modules_on_the_pages():
    listed = {
        name for line in PLUGIN_PAGE.splitlines() for name in re.findall(r"^\| `(agl\.\w+)`", line)
    }
    assert set(GROUPS.values()) <= listed
    public = set(re.findall(r"`(agl\.[a-z_.]+)`", PLUGIN_PAGE.partition("## What a plugin may")[2]))
    assert "agl.errors" in public
    for module in public:
        import_module(module)
    shown = {
        module: page.name
        for page in (*REPOSITORY.glob("docs/howto/*.md"), *REPOSITORY.glob("docs/tutorial/*.md"))
        for module in re.findall(r"^from (agl\.[a-z_.]+)", page.read_text("utf-8"), re.M)
    }
    assert {module: page for module, page in shown.items() if module not in public} == {}


@pytest.mark.plugins
def test_type_checkers_know_the_names_of_plugins_and_no_others():
    """A ``__getattr__`` in the stub would make every misspelt name one of type Any."""
    stub = ast.parse((REPOSITORY / "core/src/agl/__init__.pyi").read_text(encoding="utf-8"))
    assert not any(isinstance(node, ast.FunctionDef) for node in stub.body)
    assigned = [node for node in stub.body if isinstance(node, ast.Assign)]
    aliases = {ast.unparse(one.targets[0]): ast.unparse(one.value) for one in assigned}
    assert aliases.keys() == {*public_names("components"), *public_names("libraries")}
    for name, target in aliases.items():
        module, _, attribute = target.rpartition(".")
        assert getattr(pytest.importorskip(module), attribute) is getattr(agl, name)
