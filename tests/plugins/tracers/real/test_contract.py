"""The core's tracer contract, over the tracer of this session."""

import pytest

from agl_testing.tracer_contract import TracerContract

# Imports take long on a busy machine.
pytestmark = pytest.mark.timeout(300)


class TestTracer(TracerContract):
    @pytest.fixture
    def tracer(self, process_tracer):
        return process_tracer
