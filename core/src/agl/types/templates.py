"""Filling the placeholders of templates that come from a store, or that a model wrote.

A template that an algorithm's model rewrote runs in every runner. One in f-string form can only say
where a value stands. One in Jinja's reads values and may call their methods, so whoever gives it an
object gives it what the object can do.
"""

import re
from collections.abc import Mapping
from string import Formatter
from typing import Any

from agl.errors import ConfigError, install_line

_is_small_spec = re.compile(r"(?s)(?!.*\d{4})[^{}]*").fullmatch
"""No width and no precision of a thousand characters or more, and none from a value."""


class PlainNames(Formatter):
    """``str.format`` for names alone.

    With ``{task.x}`` and ``{task[x]}`` a template could reach all that hangs on a value, up to the
    modules of this process.
    """

    def parse(self, format_string: Any) -> Any:
        for literal, name, spec, conversion in super().parse(format_string):
            if name is not None and not (name.isidentifier() and _is_small_spec(spec or "")):
                raise ConfigError(
                    f"f-string template: the placeholder {_shown(name, spec)} is not a plain name "
                    "with at most a short format, as in {price:.2f}. Give each value by a name of "
                    "its own; a literal brace is written twice"
                )
            yield literal, name, spec, conversion


def _shown(name: str, spec: str | None) -> str:
    return f"{{{name}{':' + spec if spec else ''}}}"[:80]


def format_names(template: str, values: Mapping[str, Any]) -> str:
    """Fill an f-string template, whose placeholders are plain names.

    Raises:
        KeyError: A placeholder has no value; it names those that were given.
        ConfigError: A placeholder is more than a name with a short format.
        ValueError: A brace stands alone, or a format does not fit its value.
    """
    try:
        return PlainNames().vformat(template, (), values)
    except KeyError as error:
        (name,), given = error.args, ", ".join(values) or "nothing"
        about = f"the prompt {template[:80]!r} asks for {name!r}; format() was given {given}"
        raise KeyError(about) from None


def render_jinja(template: str, values: Mapping[str, Any]) -> str:
    """Fill a Jinja template in Jinja's immutable sandbox, which bounds neither time nor memory.

    Raises:
        ConfigError: ``jinja2`` is not installed, or the template reached for what the sandbox
            withholds.
        jinja2.TemplateError: It cannot be read, or a name has no value.
    """
    try:
        from jinja2 import StrictUndefined
        from jinja2.exceptions import SecurityError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise ConfigError(
            "PromptTemplate engine 'jinja' needs 'jinja2', which is not installed. "
            f"Run: {install_line('agl-core[jinja]')}"
        ) from None
    try:
        sandbox = ImmutableSandboxedEnvironment(undefined=StrictUndefined)
        return sandbox.from_string(template).render(values)
    except SecurityError as error:
        raise ConfigError(f"Jinja template: {error}") from None
