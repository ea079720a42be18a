"""Secrets in a configuration: taken from the environment, and never written down.

``${NAME}`` in a text of a file stands for an environment variable; ``$${NAME}`` is that text
itself.
"""

import os
import re
from collections.abc import Mapping
from typing import Any, cast

from agl.errors import ConfigError

HIDDEN = "***"

_VARIABLE = re.compile(r"\$?\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRET_KEY = re.compile(
    r"(^|[_-])(api_?key|access_?key|private_?key|secret(_?key)?|password|passwd|credentials?"
    r"|authorization)$",
    re.IGNORECASE,
)
# ``token`` is a secret, unless it is one of a vocabulary, as in ``pad_token``.
_TOKEN_KEY = re.compile(
    r"(^|(^|[_-])(api|auth|access|bearer|server|hub|hf|refresh|session|secret)[_-])token$",
    re.IGNORECASE,
)
_URL_PASSWORD = re.compile(r"(?<=://)([^/@\s:]*):([^/@\s]+)(?=@)")


def expand(value: Any, where: str) -> Any:
    """Replace ``${NAME}`` in all texts of nested dicts and lists.

    Args:
        value: What was read from a file.
        where: What error messages begin with; keys are appended.

    Raises:
        ConfigError: A variable is not set.
    """
    if isinstance(value, str):
        return _VARIABLE.sub(lambda match: _lookup(match, where), value)
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {k: expand(v, key(where, k)) for k, v in items}
    if isinstance(value, list):
        return [expand(v, key(where, n)) for n, v in enumerate(cast("list[Any]", value))]
    return value


def redact(value: Any, name: str = "") -> Any:
    """A copy without secrets: values of keys such as ``api_key``, and passwords in addresses.

    ``${NAME}`` stays as it is, so redact what was read, before ``expand``.
    """
    if isinstance(value, str):
        if is_secret(name) and not _VARIABLE.fullmatch(value):
            return HIDDEN
        return _URL_PASSWORD.sub(rf"\1:{HIDDEN}", value)
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {k: redact(v, str(k)) for k, v in items}
    if isinstance(value, list):
        return [redact(v, name) for v in cast("list[Any]", value)]
    return HIDDEN if is_secret(name) and value is not None else value


def is_secret(name: str) -> bool:
    """Whether values under this key are never to be shown."""
    return bool(_SECRET_KEY.search(name) or _TOKEN_KEY.search(name))


def _lookup(match: re.Match[str], where: str) -> str:
    if match.group().startswith("$$"):
        return match.group()[1:]
    name = match.group(1)
    if name not in os.environ:
        raise ConfigError(
            f"{where}: the environment variable {name!r} is not set. Set it, or write "
            f"$${{{name}}} if the text itself is meant"
        )
    return os.environ[name]


def key(where: str, name: object) -> str:
    """The address of a key in a message: ``agl.yaml: algorithm`` + ``prompts``, with a dot."""
    if where.endswith(":"):
        return f"{where} {name}"
    return f"{where}.{name}" if where else str(name)
