"""Regular expressions in the options of adapters."""

import re

from agl.errors import ConfigError


def compile_match(pattern: str | None, what: str) -> re.Pattern[str] | None:
    """A regular expression, or None for None.

    Raises:
        ConfigError: It is none.
    """
    try:
        return None if pattern is None else re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{what}: {pattern!r} is no regular expression: {error}") from None


def selects(pattern: re.Pattern[str] | None, name: str | None) -> bool:
    """Whether a name is chosen; without a pattern each is, with one an unknown name is not."""
    return pattern is None or (name is not None and bool(pattern.search(name)))
