"""The ``AGL_*`` environment variables, and how they are read."""

import os
from contextlib import suppress
from enum import StrEnum

from agl.errors import ConfigError


class LightningEnvVar(StrEnum):
    """Every environment variable that agl reads."""

    AGL_MANAGED_STORE = "AGL_MANAGED_STORE"
    """0: the trainer's store is used as it is, and not served."""
    AGL_CURRENT_ROLE = "AGL_CURRENT_ROLE"
    """``algorithm``, ``runner`` or ``both``: what this process does under strategy ``cs``."""
    AGL_SERVER_HOST = "AGL_SERVER_HOST"
    """Where the store is served, or found."""
    AGL_SERVER_PORT = "AGL_SERVER_PORT"
    """See ``AGL_SERVER_HOST``."""
    AGL_SERVER_TOKEN = "AGL_SERVER_TOKEN"
    """Token of an admin of the store server, for it, its clients, runners and gateways, of 16
    characters or more; required when it is bound to anything but loopback."""
    AGL_ALLOWED_HOSTS = "AGL_ALLOWED_HOSTS"
    """Comma-separated names of servers on loopback, as behind a reverse proxy; ``*`` for any."""
    AGL_GATEWAY_TOKEN = "AGL_GATEWAY_TOKEN"
    """What agents send to ``agl gateway`` as API key."""
    AGL_MODEL_API_KEY = "AGL_MODEL_API_KEY"
    """What ``agl gateway`` sends as API key to the servers of its ``--model``."""
    AGL_SERVE_API_KEY = "AGL_SERVE_API_KEY"
    """What clients send to ``agl serve`` as API key."""
    AGL_CONCURRENCY = "AGL_CONCURRENCY"
    """How many rollouts each runner runs at once; 1 unless this or the run says otherwise."""
    AGL_EMITTER_DEBUG = "AGL_EMITTER_DEBUG"
    """1: every emitted span is logged."""
    AGL_STRICT_PLUGINS = "AGL_STRICT_PLUGINS"
    """1: a plugin that fails to load raises at once."""
    AGL_DISABLE_PLUGINS = "AGL_DISABLE_PLUGINS"
    """Comma-separated names of hook plugins that are left out."""


TOKENS = (LightningEnvVar.AGL_SERVER_TOKEN.value, LightningEnvVar.AGL_GATEWAY_TOKEN.value)
"""Variables that no agent gets, and no server of a model."""
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 4747
"""Of a store server, where nothing else is said."""


def resolve_str_env_var(
    env_var: LightningEnvVar, override: str | None = None, fallback: str | None = None
) -> str | None:
    """``override`` if given, else the variable if set, else ``fallback``."""
    return os.environ.get(env_var.value, fallback) if override is None else override


def resolve_bool_env_var(
    env_var: LightningEnvVar, override: bool | None = None, fallback: bool | None = None
) -> bool | None:
    """Like ``resolve_str_env_var``, for 1/true/yes/on and 0/false/no/off; refuses the rest."""
    value = os.environ.get(env_var.value)
    if override is not None or value is None:
        return fallback if override is None else override
    if (said := value.strip().lower()) in ("1", "true", "yes", "on"):
        return True
    if said in ("0", "false", "no", "off"):
        return False
    raise ConfigError(f"{env_var.value}={value!r}: expected 1/true/yes/on or 0/false/no/off")


def resolve_int_env_var(
    env_var: LightningEnvVar,
    override: int | None = None,
    fallback: int | None = None,
    least: int | None = None,
) -> int | None:
    """Like ``resolve_str_env_var``, for whole numbers from ``least``; else a ``ConfigError``."""
    value = os.environ.get(env_var.value)
    if override is not None or value is None:
        return fallback if override is None else override
    with suppress(ValueError):
        if least is None or int(value) >= least:
            return int(value)
    expected = "a whole number" if least is None else f"a whole number, at least {least}"
    raise ConfigError(f"{env_var.value}={value!r}: expected {expected}")
