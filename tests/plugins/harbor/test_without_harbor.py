import importlib.util

import pytest

from agl.errors import ConfigError
from agl_runs.environments import load_environment

HAS_HARBOR = importlib.util.find_spec("harbor") is not None


@pytest.mark.skipif(HAS_HARBOR, reason="it is installed")
def test_it_says_what_it_needs():
    with pytest.raises(ConfigError, match=r"needs Harbor, which is not installed: .*(3\.12|pip)"):
        load_environment({"type": "harbor", "tasks": "."})
