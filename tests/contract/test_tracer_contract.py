"""The tracer contract over the core's tracer, and over that of docs/howto/choose-a-tracer.md."""

import re
from pathlib import Path

import pytest

import agl
from agl_testing.tracer_contract import TracerContract

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "choose-a-tracer.md"


def documented():
    """The tracer of the page's own text."""
    block = re.search(r'```python file="list_tracer.py"\n(.*?)```', PAGE.read_text(), re.S)
    exec(compile(block[1], str(PAGE), "exec"), names := {"__name__": "list_tracer"})
    return names["ListTracer"]()


class TestTracers(TracerContract):
    @pytest.fixture(params=[agl.OtelTracer, documented])
    def tracer(self, request):
        with request.param().lifespan() as tracer:
            yield tracer
