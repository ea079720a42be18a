"""What the hooks of a configuration are told of a trial: its attempts, and of no run."""

import inspect

import agl

OF_ATTEMPTS = (
    "on_rollout_start",
    "on_trace_start",
    "on_trace_end",
    "on_rollout_end",
    "on_attempt_end",
)
"""Hooks that belong to what is tried: one may give the reward."""


class OfAttempts(agl.Hook):
    """Calls of a hook only what it has for attempts.

    A tracker learns of a run when it starts, and would show a trial among those of a team.

    Args:
        hook: As ``Trainer(hooks=[...])`` takes it.
    """

    def __init__(self, hook: object) -> None:
        for name in dir(hook):
            if name.startswith("__"):
                continue
            method = inspect.getattr_static(hook, name)
            marked = getattr(method, "agl_impl", None) or {}
            if (marked.get("specname") or name) in OF_ATTEMPTS:
                setattr(self, name, getattr(hook, name))
