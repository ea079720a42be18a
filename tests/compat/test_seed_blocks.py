"""The Python blocks of Agent Lightning's documents run as they are, or are refused by name."""

import os
import textwrap
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from string import Template

import pytest
from tests.interpreter import python
from tests.waiting import free_port

from agl_testing.echo_llm import EchoLLM

from .seed_blocks import BLOCKS, TRACED, Block, blocks_of, documents

HERE = Path(__file__).parent
SERVER = {"AGL_SERVER_TOKEN": "a-token-of-the-test-1", "AGL_SERVER_PORT": "0"}

pytestmark = pytest.mark.nightly


@documents
def test_every_block_of_the_documents_is_listed() -> None:
    for document in {block.document for block in BLOCKS}:
        listed = [block.line for block in BLOCKS if block.document == document]
        assert sorted(listed) == sorted(blocks_of(document)), document


@documents
@pytest.mark.parametrize(
    "block",
    [block for block in BLOCKS if not block.no_program],
    ids=lambda block: f"{block.document[:3]}:{block.line}",
)
def test_block_runs_or_is_refused_by_name(block: Block, tmp_path: Path, echo_llm: EchoLLM) -> None:
    for name in block.needs:
        try:
            distribution(name)
        except PackageNotFoundError:
            pytest.skip(f"needs {name}")
    code = blocks_of(block.document)
    values = {"port": free_port(), "port2": free_port(), "model": echo_llm.url}

    def fill(code: str) -> str:
        return Template(code).substitute(values)

    text = code[block.line]
    for old, new in block.replaced:
        assert old in text, f"line {block.line} of the document has no {old!r}"
        text = text.replace(old, fill(new))
    if block.then == "in_trace":
        text = TRACED + textwrap.indent(text, "    ")
        then = "assert await store.query_spans(rollout.rollout_id)"
    else:
        then = fill(block.then)
    before = [code[line] for line in block.after]
    given = fill(block.given)
    script = tmp_path / "page.py"
    script.write_text("\n".join((given, *before, text, then)), encoding="utf-8")
    variables = {**os.environ, "MODEL_URL": echo_llm.url, **SERVER}
    run = python(HERE / "run_block.py", script, cwd=tmp_path, env=variables)
    if block.refused:
        assert run.returncode == 1, run.stdout + run.stderr
        assert block.refused in run.stderr.rpartition("Error: ")[2], run.stderr
    else:
        assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-6000:]
