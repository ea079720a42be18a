"""Rollouts made by hand, as the tests of the library have them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "libs/learning"))
from rollouts_by_hand import collected, ended

__all__ = ["collected", "ended"]
