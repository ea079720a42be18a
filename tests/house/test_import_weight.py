"""Nothing heavy is needed before it is used."""

import os
import re
import statistics
from importlib.metadata import distributions

import pytest
from tests.interpreter import python

HEAVY = [
    *("torch", "transformers", "fastapi", "uvicorn", "aiohttp", "pydantic", "openai", "litellm"),
    *("agentops", "weave", "azure", "tinker", "opentelemetry", "click", "rich"),
]
ROUNDS = 5


def import_microseconds(module: str) -> int:
    """Cumulative import time of a module in a fresh interpreter, as ``-X importtime`` gives it."""
    said = python("-X", "importtime", "-c", f"import {module}", check=True).stderr
    return int(re.findall(rf"import time:\s+\d+ \|\s+(\d+) \| {module}$", said, re.M)[-1])


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules, sep='\\n')"
    run = python("-c", code, check=True, env={**os.environ, "PYTHONPATH": ""})
    return {line.split(".")[0] for line in run.stdout.splitlines()}


HELP = "import agl.cli\ntry:\n    agl.cli.main(['--help'])\nexcept SystemExit:\n    pass"
AUTHORS = "import agl_testing.new_package, agl_testing.check_plugin"


@pytest.mark.parametrize(
    ("statement", "unneeded"),
    [
        ("import agl", HEAVY),
        ("import agl.runner", {"uvicorn", "aiohttp", "starlette"}),
        ("import agl; agl.Trainer(algorithm='baseline', strategy='shm')", {"docstring_parser"}),
        (HELP, {*HEAVY, "yaml"} - {"click"}),
        (AUTHORS, {"pydantic", "pytest", "agl_records", "agl_learning", "fastapi"}),
    ],
    ids=["agl", "runner", "trainer", "help", "authors"],
)
def test_nothing_is_loaded_that_is_not_needed(statement, unneeded):
    loaded = modules_after(statement)
    assert "agl" in loaded
    assert not loaded & {*unneeded}


@pytest.mark.slow  # on a busy machine
def test_import_agl_takes_at_most_a_third_of_import_openai():
    pytest.importorskip("openai")
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(import_microseconds("agl"))
        theirs.append(import_microseconds("openai"))
    assert statistics.median(ours) <= statistics.median(theirs) / 3, (ours, theirs)


@pytest.mark.plugins
@pytest.mark.parametrize("command", ["rollouts", "show", "ledger"])
def test_a_look_at_a_store_loads_no_server_and_no_client(command):
    pytest.importorskip("agl_inspect")
    loaded = modules_after(f"import agl_inspect.commands.{command}")
    assert not loaded & (set(HEAVY) - {"pydantic", "click"} | {"httpx", "docstring_parser"})


@pytest.mark.plugins
def test_showing_a_rollout_loads_nothing_that_only_a_run_or_a_task_needs():
    pytest.importorskip("agl_inspect")
    unused = "['agl_inspect.report.text', 'agl_inspect.show.task', 'agl_inspect.show.run']"
    statement = "import agl_inspect.commands.show, sys; assert not {*sys.modules} & {*" + unused
    assert "agl_inspect" in modules_after(statement + "}")


PLUGIN_MODULES = sorted(
    distribution.metadata["Name"].removesuffix("agl-agentlightning").replace("-", "_")
    or "agentlightning"
    for distribution in distributions()
    if (distribution.metadata["Name"] or "").startswith("agl-")
    and distribution.metadata["Name"] not in ("agl-core", "agl-workspace")
)


@pytest.mark.plugins
@pytest.mark.parametrize("module", PLUGIN_MODULES)
def test_top_module_of_a_plugin_loads_nothing_heavy(module):
    if "example" in module or module == "agl_bestprompt":
        pytest.skip("not one of ours")
    assert not modules_after(f"import {module}") & {*HEAVY, "asyncio"}
