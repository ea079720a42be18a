"""What to do about what a trial finds; the texts are in ``fixes.toml``."""

import tomllib
from importlib.resources import files

from agl_records.types import ExclusionReason

_TEXTS = tomllib.loads(files("agl_inspect.doctor").joinpath("fixes.toml").read_text("utf-8"))
FIXES: dict[ExclusionReason, str] = _TEXTS["reasons"]
"""Reason why something trained nothing -> what to do."""
FINDING_FIXES: dict[str, str] = _TEXTS["findings"]
"""Finding of a trial, or what is special of one -> what to do."""
FAILURE_FIXES: dict[str, str] = _TEXTS["boundaries"]
"""Boundary at which an attempt failed -> what to do."""
