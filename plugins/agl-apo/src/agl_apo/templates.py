"""Templates in three engines: which placeholders one has, whether it is whole, what it renders to.

f-string and Jinja templates are filled by ``PromptTemplate.format``, POML ones by the package
``poml`` (extra ``poml``), which starts Node and takes more than a second for each.
"""

import re
from typing import Any

from agl.errors import ConfigError, install_line
from agl.types import PromptTemplate
from agl.types.resources import PlainNames


class BrokenTemplateError(ValueError):
    """A template that its engine cannot read, or that lacks or adds a placeholder."""


def placeholders(template: PromptTemplate) -> set[str]:
    """Names that the template wants values for.

    Raises:
        BrokenTemplateError: Its engine cannot read it.
    """
    text = template.template
    if template.engine == "f-string":
        try:
            return {name for _, name, _, _ in PlainNames().parse(text) if name is not None}
        except ConfigError as error:
            raise BrokenTemplateError(str(error)) from None
        except ValueError as error:
            raise BrokenTemplateError(
                f"{error}; in an f-string template a literal brace is written twice"
            ) from None
    if template.engine == "jinja":
        from jinja2 import Environment, TemplateSyntaxError, meta

        try:
            parsed = Environment().parse(text)
        except TemplateSyntaxError as error:
            raise BrokenTemplateError(f"line {error.lineno}: {error.message}") from None
        return meta.find_undeclared_variables(parsed)
    if text.count("{{") != text.count("}}"):
        raise BrokenTemplateError("'{{' and '}}' do not pair")
    return set(re.findall(r"{{\s*([A-Za-z_]\w*)", text))


def check_edit(seed: PromptTemplate, text: str) -> None:
    """Refuse an edited text that cannot take the place of the seed.

    Raises:
        BrokenTemplateError: It is empty, cannot be read, or has other placeholders.
    """
    if not text.strip():
        raise BrokenTemplateError("the model returned nothing")
    wanted = placeholders(seed)
    found = placeholders(PromptTemplate(template=text, engine=seed.engine))
    if lost := sorted(wanted - found):
        raise BrokenTemplateError(f"it lost the placeholder {', '.join(map(repr, lost))}")
    if added := sorted(found - wanted):
        raise BrokenTemplateError(
            f"it asks for {', '.join(map(repr, added))}, which the agent does not give; it gives "
            f"{', '.join(map(repr, sorted(wanted))) or 'nothing'}"
        )
    if more := sorted(_uses(seed.engine, text) - _uses(seed.engine, seed.template)):
        raise BrokenTemplateError(
            f"it uses {more[0]!r}, which the seed does not; write what is in braces (and, in POML, "
            "tags with attributes) as it stands there"
        )


def _uses(engine: str, text: str) -> set[str]:
    """All that a template asks of its values: more than names, and a model may reach for more."""
    if engine == "f-string":
        fields = [part for part in PlainNames().parse(text) if part[1] is not None]
        return {f"{{{name}!{conversion}:{spec}}}" for _, name, spec, conversion in fields}
    if engine == "poml":
        return {*re.findall(r"{{.*?}}", text, re.S), *re.findall(r"<\w[\w-]*\s[^>]*>", text)}
    from jinja2 import Environment, nodes

    parsed = Environment().parse(text)
    return {
        *(_path(node) for node in parsed.find_all((nodes.Getattr, nodes.Getitem))),
        *(f"|{node.name}" for node in parsed.find_all(nodes.Filter)),
        *(f"is {node.name}" for node in parsed.find_all(nodes.Test)),
        *(f"{_path(node.node)}()" for node in parsed.find_all(nodes.Call)),
    }


def _path(node: Any) -> str:
    from jinja2 import nodes

    if isinstance(node, nodes.Name | nodes.Const):
        return str(node.name if isinstance(node, nodes.Name) else repr(node.value))
    if isinstance(node, nodes.Getattr):
        return f"{_path(node.node)}.{node.attr}"
    if isinstance(node, nodes.Getitem):
        return f"{_path(node.node)}[{_path(node.arg)}]"
    return type(node).__name__


def render(template: PromptTemplate, **values: Any) -> str:
    """Fill a template of any engine; of a POML one the text of all its messages.

    Raises:
        KeyError: An f-string placeholder has no value.
        ConfigError: ``poml`` is not installed.
    """
    if template.engine != "poml":
        return template.format(**values)
    try:
        import poml  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ConfigError(
            "PromptTemplate engine 'poml' needs 'poml', which is not installed. "
            f"Run: {install_line('agl-apo[poml]')}"
        ) from None
    messages: Any = poml.poml(template.template, context=values, format="openai_chat")
    return "\n\n".join(_text(message["content"]) for message in messages["messages"])


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content)
