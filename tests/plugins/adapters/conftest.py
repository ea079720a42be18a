import pytest

from agl_testing.traces import Trace


@pytest.fixture
def trace() -> Trace:
    return Trace()
