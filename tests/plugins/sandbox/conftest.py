"""The fixtures of the runner's own tests."""

from ...core.runner.conftest import run_all, run_one, until  # noqa: F401, TID252
