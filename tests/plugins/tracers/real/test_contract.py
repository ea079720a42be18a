"""The core's tracer contract, over the tracer of this session."""

import pytest

from agl_testing.tracer_contract import TracerContract

# Imports take long on a busy machine.
pytestmark = pytest.mark.timeout(300)


class TestTracer(TracerContract):
    @pytest.fixture
    def tracer(self, process_tracer):
        process_tracer.init_worker(0)  # a test before may have given it a store
        return process_tracer
