"""Public is what the reference page lists, and every name of it can be imported."""

import ast
import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import agl
from agl.errors import install_line
from agl.plugins.registry import GROUPS
from agl.utils.catalogue import public_names

REPOSITORY = Path(__file__).parents[2]
REFERENCE = REPOSITORY / "docs" / "reference" / "public-names.md"

# Names that the guides of Agent Lightning 0.3 use, as far as they live in the core.
GUIDE_NAMES = [
    "Algorithm",
    "Baseline",
    "Dataset",
    "ExecutionEvent",
    "FastAlgorithm",
    "Hook",
    "InMemoryLightningStore",
    "LLM",
    "LightningStore",
    "LightningStoreClient",
    "LightningStoreServer",
    "LitAgent",
    "LitAgentRunner",
    "NamedResources",
    "OtelTraceAdapter",
    "OtelTracer",
    "ParallelWorkerBase",
    "PromptTemplate",
    "ProxyLLM",
    "Resource",
    "Rollout",
    "Runner",
    "SharedMemoryExecutionStrategy",
    "ClientServerExecutionStrategy",
    "Span",
    "SpanCoreFields",
    "TraceAdapter",
    "Tracer",
    "Trainer",
    "Triplet",
    "Adapter",
    "algo",
    "emit_annotation",
    "emit_exception",
    "emit_message",
    "emit_object",
    "emit_reward",
    "find_final_reward",
    "find_reward_spans",
    "operation",
    "rollout",
    "setup_logging",
]


def test_every_public_name_can_be_imported() -> None:
    for name in agl.__all__:
        assert getattr(agl, name) is not None, name


def test_a_star_import_brings_no_module() -> None:
    assert not [name for name in agl.__all__ if inspect.ismodule(getattr(agl, name))]


def test_dir_lists_the_public_names() -> None:
    assert set(agl.__all__) <= set(dir(agl))


def test_submodules_are_attributes() -> None:
    for name in ("types", "store", "adapter", "emitter", "semconv", "trainer"):
        assert getattr(agl, name) is import_module(f"agl.{name}")


@pytest.mark.parametrize("name", GUIDE_NAMES)
def test_names_of_the_guides_are_there(name: str) -> None:
    assert hasattr(agl, name)


def test_reference_page_lists_exactly_the_public_names() -> None:
    listed = set(re.findall(r"^\| `([A-Za-z_]+)` \|", REFERENCE.read_text(), re.M))
    assert listed == set(agl.__all__) - {"__version__"}


@pytest.mark.plugins
def test_generated_pages_are_what_the_code_says() -> None:
    for plugin in ("agl_adapters", "agl_gateway", "agl_torch"):
        pytest.importorskip(plugin)
    checked = subprocess.run(
        [sys.executable, REPOSITORY / "docs" / "generate.py", "--check"],
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stderr


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'agl' has no attribute 'Traner'"):
        _ = agl.Traner  # type: ignore[attr-defined]


def test_name_of_an_absent_plugin_says_what_to_install() -> None:
    # As if nothing but the core were installed: no entry point is found.
    code = "import agl, agl.plugins.registry as p; p._scan = lambda paths: (); agl.VERL"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode != 0
    assert install_line("agl-verl") in run.stderr


def test_submodules_of_the_guides_can_be_imported() -> None:
    from agl.emitter import find_final_reward
    from agl.utils.otel import (
        extract_links_from_attributes,
        extract_tags_from_attributes,
        make_link_attributes,
        make_tag_attributes,
        query_linked_spans,
    )

    for each in (
        find_final_reward,
        extract_links_from_attributes,
        extract_tags_from_attributes,
        make_link_attributes,
        make_tag_attributes,
        query_linked_spans,
    ):
        assert callable(each)


PLUGIN_PAGE = (REPOSITORY / "docs/howto/write-a-plugin.md").read_text(encoding="utf-8")


def test_authors_find_every_group_and_only_public_modules_on_the_pages() -> None:
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
def test_type_checkers_know_the_names_of_plugins_and_no_others() -> None:
    """A ``__getattr__`` in the stub would make every misspelt name one of type Any."""
    stub = ast.parse((REPOSITORY / "core/src/agl/__init__.pyi").read_text(encoding="utf-8"))
    assert not any(isinstance(node, ast.FunctionDef) for node in stub.body)
    aliases = {
        node.targets[0].id: ast.unparse(node.value)
        for node in stub.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert aliases.keys() == {*public_names("components"), *public_names("libraries")}
    for name, target in aliases.items():
        module, _, attribute = target.rpartition(".")
        assert getattr(pytest.importorskip(module), attribute) is getattr(agl, name)
