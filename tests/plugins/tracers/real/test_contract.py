"""The core's tracer contract, over the tracer of this session."""

import pytest

from agl_testing.tracer_contract import *  # noqa: F403

# Imports take long on a busy machine.
pytestmark = pytest.mark.timeout(300)
