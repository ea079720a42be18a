"""The tracer contract over the tracer that ``docs/howto/choose-a-tracer.md`` shows."""

import re
import types
from pathlib import Path

import pytest

from agl_testing.tracer_contract import *  # noqa: F403

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "choose-a-tracer.md"


@pytest.fixture(scope="module")
def documented():
    """The page's own text, as the module that it says it is."""
    block = re.search(r'```python file="list_tracer.py"\n(.*?)```', PAGE.read_text(), re.S)
    assert block is not None
    module = types.ModuleType("list_tracer")
    exec(compile(block[1], str(PAGE), "exec"), vars(module))
    return module


@pytest.fixture
def tracer(documented):
    tracer = documented.ListTracer()
    with tracer.lifespan():
        yield tracer
