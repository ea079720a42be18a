from collections.abc import Callable

import pytest

from agl_testing.traces import Trace


@pytest.fixture
def trace() -> Trace:
    return Trace()


@pytest.fixture
def new_trace() -> Callable[..., Trace]:
    return Trace


@pytest.fixture(scope="session")
def new_trace_factory() -> Callable[..., Trace]:
    """Like ``new_trace``, for hypothesis, which wants no fixture per example."""
    return Trace
