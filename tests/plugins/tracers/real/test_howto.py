"""Every agent of docs/howto/use-any-framework.md runs as it stands there, and is in a row."""

import os
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path

import pytest
from gateway_run import gateway_of
from processes import CODEX, node_folder, npm_folder
from scene import QUESTION, reply

import agl
from agl_adapters import TraceToRows

pytestmark = pytest.mark.timeout(300)
PAGE = Path(__file__).parents[4] / "docs" / "howto" / "use-any-framework.md"
SECTION = re.compile(r'^## (.*?)$.*?^```python needs="(.*?)"$\n(.*?)^```$', re.M | re.S)
TOOL = re.compile(r'^```python file="weather.py"$\n(.*?)^```$', re.M | re.S)
SECTIONS = {name: (needs, code) for name, needs, code in SECTION.findall(PAGE.read_text())}


@pytest.fixture
def weather(tmp_path, monkeypatch):
    """The module of the page's first block, which all others import."""
    match = TOOL.search(PAGE.read_text())
    assert match is not None
    (tmp_path / "weather.py").write_text(match[1])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "weather", raising=False)


def test_every_section_has_an_agent():
    headings = re.findall(r"^## (.*)$", PAGE.read_text(), re.M)
    assert [*SECTIONS, "Without a gateway"] == headings


@pytest.mark.parametrize("name", SECTIONS)
async def test_agent_of_the_page(name, weather, tracer, once, memory_store, monkeypatch):
    needs, code = SECTIONS[name]
    installed = {each.name for each in metadata.distributions()}
    if missing := set(needs.split()) - installed:
        pytest.skip(f"needs {', '.join(missing)}")
    if name in ("Codex", "Any other language"):
        if shutil.which("npm") is None:
            pytest.skip("there is no npm")
        if name == "Codex":
            bin = npm_folder(f"@openai/codex@{CODEX}") / "node_modules" / ".bin"
            monkeypatch.setenv("PATH", str(bin), prepend=os.pathsep)
        else:
            monkeypatch.chdir(node_folder())
    made: dict[str, object] = {}
    exec(compile(code, f"{PAGE.name}: {name}", "exec"), made)
    async with gateway_of(reply, memory_store) as proxy:
        runner = agl.LitAgentRunner(tracer)
        with runner.run_context(agent=made["agent"], store=memory_store):  # pyright: ignore
            resources: agl.NamedResources = {"llm": proxy.as_resource()}
            rollout = await runner.step(QUESTION, resources=resources)
    assert rollout.status == "succeeded"
    spans = list(await memory_store.query_spans(rollout.rollout_id))
    rows = TraceToRows().adapt(spans)
    assert sum(len(row.call_ids) for row in rows.rows) == 2
    assert {row.reward for row in rows.rows} == {1.0}
    assert rows.ledger.exclusions == []
