"""Secrets in a configuration: taken from the environment, and never written down.

``${NAME}`` in a text of a file stands for an environment variable; ``$${NAME}`` is that text
itself.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, cast

from agl.errors import ConfigError
from agl.plugins.schema import key
from agl.utils.secrets import HIDDEN, hide, is_secret, learn

_VARIABLE = re.compile(r"\$?\$\{([^{}]*)\}")
# --name=value, NAME=value, ?name=value; a variable is filled in later.
_NAMED = re.compile(r"((?:^|[?&\s])-*([\w-]{1,80})=)(?!\${)[^\s&#'\"]+")
_PASSWORD = re.compile(r"://[^/@\s:]*:([^/@\s]+)@")


def expand(value: Any, where: str, name: str = "") -> Any:
    """Replace ``${NAME}`` in all texts of nested dicts and lists; ``where`` begins messages.

    agl does not write down what comes out of the environment (see ``utils.secrets``), if the
    variable's name or the key says that it is a secret, or if it is the password of an address.

    Raises:
        ConfigError: A variable is not set, or there is more in the braces than its name.
    """
    if isinstance(value, str):
        filled = _VARIABLE.sub(partial(_lookup, where=where, key_name=name), value)
        for password in _PASSWORD.findall(filled):
            learn(password)
        return filled
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {k: expand(v, key(where, k), str(k)) for k, v in items}
    if isinstance(value, list):
        return [expand(v, key(where, n), name) for n, v in enumerate(cast("list[Any]", value))]
    return value


def redact(value: Any, name: str = "") -> Any:
    """A copy without secrets: what stands under their names, has their form, or is known as one.

    ``${NAME}`` stays as it is, so redact what was read, before ``expand``.
    """
    if isinstance(value, str):
        if is_secret(name) and not _VARIABLE.fullmatch(value):
            return HIDDEN
        named = _NAMED.sub(lambda one: one[1] + HIDDEN if is_secret(one[2]) else one[0], value)
        return hide(named)
    if is_dataclass(value) and not isinstance(value, type):  # a group of options
        value = {one.name: getattr(value, one.name) for one in fields(value)}
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {k: redact(v, name if is_secret(name) else str(k)) for k, v in items}
    if isinstance(value, list):
        return [redact(v, name) for v in cast("list[Any]", value)]
    return HIDDEN if is_secret(name) and value is not None else value


def _lookup(match: re.Match[str], where: str, key_name: str) -> str:
    if match.group().startswith("$$"):
        return match.group()[1:]
    name = match.group(1)
    if name not in os.environ:
        wrong = f"the environment variable {name!r} is not set. Set it, or write"
        if not re.fullmatch(r"\w+", name):
            wrong = f"${{{name}}}: only a name may stand in the braces; agl has no defaults. Write"
        raise ConfigError(f"{where}: {wrong} $${{{name}}} if the text itself is meant")
    value = os.environ[name]
    if is_secret(name) or is_secret(key_name):
        learn(value)
    return value
