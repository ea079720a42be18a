"""``agl migrate`` says what to change in scripts of agentlightning, and changes it."""

import ast
import json
import os
import re
import sys
import textwrap
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.interpreter import python

from agentlightning._migrate.command import command
from agentlightning._migrate.homes import home_of
from agentlightning._migrate.script import migrate

pytestmark = pytest.mark.plugins

HERE = Path(__file__).parent
SEEDS = Path(os.environ.get("AGL_SEEDS", HERE.parents[1].parent / "shared/seeds"))
GUIDES = SEEDS / "003_guides_and_example_readmes.md"
FENCE = re.compile(r"^( *)```python[^\n]*\n(.*?)^\1```", re.M | re.S)


def changed(source: str) -> str:
    return migrate(textwrap.dedent(source))[0]


def looks(source: str) -> list[str]:
    """What a person must look at."""
    return [found.what for found in migrate(textwrap.dedent(source))[1] if found.kind == "look"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import agentlightning as agl", "import agl"),
        ("import os, agentlightning as al", "import os, agl as al"),
        ("import agentlightning\nagentlightning.LitAgent", "import agl\nagl.LitAgent"),
        ("from agentlightning import Trainer as T", "from agl import Trainer as T"),
        (
            "from agentlightning.store import InMemoryLightningStore",
            "from agl import InMemoryLightningStore",
        ),
        (
            "from agentlightning.utils.otel import make_tag_attributes",
            "from agl.utils.otel import make_tag_attributes",
        ),
        ("import agentlightning.utils.otel as otel", "import agl.utils.otel as otel"),
        ("from agentlightning import emitter, semconv", "from agl import emitter, semconv"),
        (
            "from agentlightning.semconv import RewardPydanticModel",
            "from agl import RewardDimension as RewardPydanticModel",
        ),
        (
            "from agentlightning.semconv import AGL_REWARD, RewardPydanticModel",
            "from agl.semconv import AGL_REWARD\n"
            "from agl import RewardDimension as RewardPydanticModel",
        ),
        (
            "from agentlightning import (\n    LLM,  # a model\n)",
            "from agl import (\n    LLM,  # a model\n)",
        ),
        ("import numpy as agentlightning_like", "import numpy as agentlightning_like"),
    ],
)
def test_imports_are_of_agl(before: str, after: str) -> None:
    assert changed(before) == after


def test_names_are_found_where_agl_has_them() -> None:
    assert changed(
        """
        import agentlightning as al
        al.emitter.find_final_reward([])
        al.adapter.triplet.TracerTraceToTriplet(reward_match=al.adapter.triplet.RewardMatchPolicy.FIRST_SIBLING)
        """
    ) == textwrap.dedent(
        """
        import agl as al
        al.find_final_reward([])
        al.TracerTraceToTriplet(reward_match="first_sibling")
        """
    )
    assert changed(
        "import agentlightning\nagentlightning.utils.otel.make_tag_attributes(['é'])"
    ) == ("import agl\nimport agl.utils.otel\nagl.utils.otel.make_tag_attributes(['é'])")


def test_what_agl_does_not_have_goes_on_coming_from_agentlightning() -> None:
    source = """\
    from agentlightning import DevTaskLoader, Trainer
    import agentlightning as agl
    agl.LLM, agl.adapter.triplet.TraceTree
    """
    assert changed(source) == textwrap.dedent(
        """\
        from agl import Trainer
        from agentlightning import DevTaskLoader
        import agentlightning
        import agl
        agl.LLM, agentlightning.adapter.triplet.TraceTree
        """
    )
    assert looks(source) == ["DevTaskLoader", "TraceTree"]
    assert changed(changed(source)) == changed(source)


def test_what_is_refused_says_what_to_use() -> None:
    text, (found,) = migrate("from agentlightning.store.mongo import MongoLightningStore")
    assert text == "from agentlightning.store.mongo import MongoLightningStore"
    assert (found.kind, "SqliteLightningStore" in found.why) == ("look", True)


@pytest.mark.parametrize(
    "source",
    [
        "x = 1; from agentlightning import DevTaskLoader, Trainer; y = 2",
        "if x: from agentlightning import DevTaskLoader, Trainer\nelse: pass",
        "if x: import agentlightning; agentlightning.LLM, agentlightning.Task\nelse: pass",
        "def f():\n\tfrom agentlightning import DevTaskLoader, Trainer\n\treturn Trainer",
        "def f():\n    from agentlightning.adapter.triplet import RewardMatchPolicy",
    ],
)
def test_statements_may_stand_anywhere_on_a_line(source: str) -> None:
    text = changed(source)
    assert is_python(text), text
    assert text != source


def test_names_in_texts_change_where_their_place_is_known() -> None:
    source = "import agentlightning\nprint(f'é {agentlightning.LLM!r:>3} {1}')"
    text, findings = migrate(source)
    assert is_python(text), text
    if sys.version_info >= (3, 12):
        assert "agentlightning" not in text
    else:
        assert text.endswith("{agentlightning.LLM!r:>3} {1}')")
        assert [f.kind for f in findings] == ["change", "look"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Trainer(n_workers=2, tracer=t)", "Trainer(n_runners=2, tracer=t)"),
        ("Trainer(max_tasks=2, tracer=t)", "Trainer(max_rollouts=2, tracer=t)"),
        ("Trainer(triplet_exporter=a, tracer=t)", "Trainer(adapter=a, tracer=t)"),
        ("Trainer(daemon=True, tracer=t)", "Trainer(tracer=t)"),
        ("Trainer(tracer=t, daemon=True)", "Trainer(tracer=t)"),
        ("Trainer(tracer=t, daemon=True, hooks=h)", "Trainer(tracer=t, hooks=h)"),
        ("Trainer()", 'Trainer(tracer="agentops")'),
        ("Trainer(daemon=True)", 'Trainer(tracer="agentops")'),
        ("Trainer(n_runners=1, daemon=True)", 'Trainer(n_runners=1, tracer="agentops")'),
        ("Trainer(n_runners=1,)", 'Trainer(n_runners=1, tracer="agentops",)'),
        ("Trainer(**options)", "Trainer(**options)"),
        ("LLMProxy(port=1, launch_mode='mp')", "LLMProxy(port=1)"),
        ("AgentOpsTracer(daemon=True, agentops_managed=True)", "AgentOpsTracer()"),
        ("Baseline(n_epochs=1, polling_interval=1.0)", "Baseline(n_epochs=1)"),
        (
            "Trainer(tracer=t, adapter='agentlightning.adapter.TraceToMessages')",
            'Trainer(tracer=t, adapter="agl.TraceToMessages")',
        ),
    ],
)
def test_parameters_are_those_of_agl(before: str, after: str) -> None:
    head = "from {} import AgentOpsTracer, Baseline, LLMProxy, Trainer\n"
    assert changed(head.format("agentlightning") + before) == head.format("agl") + after


def test_parameters_that_agl_refuses_are_named() -> None:
    assert looks(
        """
        import agentlightning as agl
        agl.Trainer(dev=True, tracer="otel")
        agl.InMemoryLightningStore(eviction_memory_threshold=1)
        agl.LightningStoreServer(store, n_workers=2)
        """
    ) == [
        "Trainer(dev=)",
        "InMemoryLightningStore(eviction_memory_threshold=)",
        "LightningStoreServer(n_workers=)",
        "LightningStoreServer",
    ]


def test_methods_and_servers_that_agl_does_not_call_are_named() -> None:
    assert looks(
        """
        from agentlightning import LitAgent, Trainer
        class Agent(LitAgent[dict]):
            def on_rollout_start(self, *about): ...
        Trainer(tracer="otel").fit(Agent(), "http://localhost:8000")
        """
    ) == ["on_rollout_start", "http://localhost:8000"]


def test_names_of_spans_stay_and_loggers_change() -> None:
    source = 'import logging\nlogging.getLogger("agentlightning.x")\n"agentlightning.reward"\n'
    assert changed(source) == source.replace('"agentlightning.x"', '"agl.x"')


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_files_change_with_write_only(tmp_path: Path) -> None:
    script, other = tmp_path / "a" / "train.py", tmp_path / "other.py"
    script.parent.mkdir()
    script.write_bytes(b"import agentlightning as agl\r\nagl.emit_reward(1)\r\n")
    other.write_text("print(1)\n")
    said = run(tmp_path)
    assert said.exit_code == 0
    assert f"{script}:1: change: import agentlightning as agl  ->  import agl" in said.output
    assert b"agentlightning" in script.read_bytes()
    assert run("--write", tmp_path).exit_code == 0
    assert script.read_bytes() == b"import agl\r\nagl.emit_reward(1)\r\n"
    assert run(tmp_path).output.endswith("0 files to change with --write; 0 places to look at\n")


def test_cells_of_a_notebook_share_their_names(tmp_path: Path) -> None:
    notebook = tmp_path / "n.ipynb"
    sources = [
        "!pip install agentlightning\nimport agentlightning as al",
        ["%time\n", "al.emitter.emit_reward(1)\n", "al.LLM"],
        "%%bash\nimport agentlightning",
    ]
    cells = [{"cell_type": "code", "source": source, "metadata": {}} for source in sources]
    cells.append({"cell_type": "markdown", "source": "import agentlightning", "metadata": {}})
    notebook.write_text(json.dumps({"cells": cells, "nbformat": 4}))
    said = json.loads(run("--json", "--write", notebook).stdout)
    assert [(each["cell"], each["line"], each["what"]) for each in said] == [
        (1, 2, "import agentlightning as al"),
        (2, 2, "al.emitter.emit_reward"),
    ]
    assert [cell["source"] for cell in json.loads(notebook.read_text())["cells"]] == [
        "!pip install agentlightning\nimport agl as al",
        ["%time\n", "al.emit_reward(1)\n", "al.LLM"],
        *sources[2:],
        "import agentlightning",
    ]


def test_what_is_no_python_is_named(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("import agentlightning\nf(\n")
    (said,) = json.loads(run("--json", script).stdout)
    assert (said["line"], said["kind"], "not read" in said["why"]) == (2, "look", True)
    assert run(tmp_path / "none.py").exit_code == 2


SCRIPT = """\
import agentlightning as agl
from agentlightning.adapter.triplet import RewardMatchPolicy, TracerTraceToTriplet
from agentlightning.emitter import find_final_reward
from agentlightning.store import InMemoryLightningStore

class Agent(agl.LitAgent):
    def training_rollout(self, task, resources, rollout):
        agl.emit_reward(0.25)
        return len(task) / 10

class Once(agl.Algorithm):
    async def run(self, train_dataset=None, val_dataset=None):
        store = self.get_store()
        for task in train_dataset:
            rollout = await store.enqueue_rollout(task, mode="train")
            (ended,) = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
            spans = await store.query_spans(rollout.rollout_id)
            print(task, ended.status, find_final_reward(spans))

adapter = TracerTraceToTriplet(reward_match=RewardMatchPolicy.FIRST_SIBLING)
agl.Trainer(
    algorithm=Once(), n_workers=1, tracer=agl.OtelTracer(), triplet_exporter=adapter,
    store=InMemoryLightningStore(scan_debounce_seconds=1.0), strategy="shm", daemon=True,
).fit(Agent(), ["a", "bb"])
"""


def test_script_does_the_same_after_it(tmp_path: Path) -> None:
    said: list[str] = []
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    for _ in range(2):
        ran = python(script, cwd=tmp_path, check=True)
        said.append(ran.stdout)
        run("--write", script)
    assert said == ["a succeeded 0.1\nbb succeeded 0.2\n"] * 2
    assert "agentlightning" not in script.read_text()


def blocks() -> list[tuple[int, str]]:
    if not GUIDES.is_file():
        return []
    text = GUIDES.read_text("utf-8")
    found = [
        (text[: m.start()].count("\n") + 1, textwrap.dedent(m[2])) for m in FENCE.finditer(text)
    ]
    return [(line, block) for line, block in found if is_python(block)]


def is_python(block: str) -> bool:
    try:
        compile(block, "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError:  # what a block printed, or three dots among arguments
        return False
    return True


@pytest.mark.skipif(not blocks(), reason="needs the documents of the seeds")
@pytest.mark.parametrize("block", [pytest.param(b, id=str(line)) for line, b in blocks()])
def test_guides_import_what_agl_has(block: str) -> None:
    text, findings = migrate(block)
    assert is_python(text)
    kept = {found.what.rpartition(".")[2] for found in findings if found.kind == "look"}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in ("agl", "agentlightning"):
                    assert find_spec(alias.name) is not None
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            top = node.module.partition(".")[0]
            names = {alias.name for alias in node.names}
            if top == "agl":
                assert {
                    name for name in names if not hasattr(import_module(node.module), name)
                } == set()
            if top == "agentlightning":
                assert names <= kept
    assert migrate(text)[0] == text, "a second time changes nothing"


def test_every_name_that_agl_has_is_where_it_is_said_to_be() -> None:
    facts = json.loads((HERE / "names_of_0_3.json").read_text("utf-8"))
    homes = {
        home
        for module, about in facts.items()
        for name in about["names"]
        if (home := home_of(module.partition(".")[2], name))
    }
    assert len(homes) > 130
    missing = [home for home in homes if not hasattr(import_module(home.module), home.name)]
    assert missing == []
