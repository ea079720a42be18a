"""Regular expressions in the options of adapters."""

import re

from agl.errors import ConfigError


def compile_match(pattern: str, what: str) -> re.Pattern[str]:
    """A regular expression.

    Raises:
        ConfigError: It is none.
    """
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{what}: {pattern!r} is no regular expression: {error}") from None


def selects(agent_match: re.Pattern[str] | None, agent_name: str | None) -> bool:
    """Whether an agent is chosen; without a pattern each is, with one an unknown agent is not."""
    if agent_match is None:
        return True
    return agent_name is not None and bool(agent_match.search(agent_name))
