import sys
from pathlib import Path

import pytest

from agl_testing.traces import Trace

sys.path.insert(0, str(Path(__file__).parent))
from rollouts_by_hand import collected, ended

__all__ = ["collected", "ended"]


@pytest.fixture
def trace() -> Trace:
    return Trace()
