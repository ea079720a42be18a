"""Agents as classes."""

import inspect
from collections.abc import Callable
from typing import Any

from agentlightning._names import rest
from agl import LitAgent as LitAgent


def is_v0_1_rollout_api(func: Callable[..., Any]) -> bool:
    """Whether a rollout method is written as in 0.1, with a parameter ``rollout_id``."""
    return "rollout_id" in inspect.signature(func).parameters


__getattr__ = rest(__name__)
