"""Templates that a model wrote, or that lie in a store, reach no code behind their values.

Each attack is first shown to work where nothing holds it, so that none passes as it is broken.
"""

import os
from typing import Any

import jinja2
import pytest

import agl
from agl.errors import ConfigError


class Task:
    """A value that an agent may give to a template."""

    def __init__(self) -> None:
        self.question, self.answer = "6 * 7?", "42"


def filled(template: str, engine: Any = "f-string") -> str:
    return agl.PromptTemplate(template=template, engine=engine).format(task=Task(), x="x")


@pytest.mark.parametrize(
    ("template", "gives"),
    [
        ("{task.answer}", "42"),
        ("{task.__dict__[answer]}", "42"),
        ("{task.__init__.__globals__[os].environ[HOME]}", os.environ.get("HOME", "")),
        ("{x:>200000}", " " * 199_999 + "x"),
        ("{x:\n>200000}", "\n" * 199_999 + "x"),
        ("{x:{task.answer}}", "x" + " " * 41),
    ],
)
def test_f_string_reaches_nothing_behind_a_value(template: str, gives: str) -> None:
    assert template.format(task=Task(), x="x") == gives
    with pytest.raises(ConfigError, match="is not a plain name"):
        filled(template)


@pytest.mark.parametrize(
    "template",
    [
        "{{ task.__init__.__globals__['os'].getpid() }}",
        "{{ cycler.__init__.__globals__.os.getpid() }}",
        "{{ self.__init__.__globals__.__builtins__.__import__('os').getpid() }}",
        "{% for c in ().__class__.__base__.__subclasses__() if c.__name__ == '_wrap_close' %}"
        "{{ c.__init__.__globals__['getpid']() }}{% endfor %}",
    ],
)
def test_jinja_runs_no_code(template: str) -> None:
    assert jinja2.Template(template).render(task=Task(), x="x") == str(os.getpid())
    with pytest.raises((ConfigError, jinja2.UndefinedError)):
        filled(template, "jinja")


def test_jinja_changes_no_value() -> None:
    mine: list[int] = []
    template = "{{ mine.append(1) or '' }}"
    jinja2.Template(template).render(mine=mine)
    assert mine == [1]
    with pytest.raises(ConfigError, match="append"):
        agl.PromptTemplate(template=template, engine="jinja").format(mine=mine)
    assert mine == [1]


def test_honest_templates_are_filled() -> None:
    assert filled("{x}, {x!r}, {x:>3}, {{x}}") == "x, 'x',   x, {x}"
    assert filled("{{ task.question }}{% if x %} {{ x|upper }}{% endif %}", "jinja") == "6 * 7? X"


@pytest.mark.parametrize(
    ("engine", "seed", "edit"),
    [
        ("jinja", "Solve {{ task.question }}", "Solve {{ task.question }} ({{ task.answer }})"),
        ("jinja", "Solve {{ task.question }}", "Solve {{ task.question }} {{ task['answer'] }}"),
        ("jinja", "Solve {{ task.question }}", "Solve {{ task.question }} {{ task|pprint }}"),
        ("jinja", "Solve {{ x }}", "Solve {{ x }} {{ x.__class__ }}"),
        ("jinja", "Solve {{ x }}", "Solve {{ x }} {{ x.split() }}"),
        ("f-string", "Solve {x}", "Solve {x:>999}"),
        ("f-string", "Solve {x}", "Solve {x} {x.answer}"),
        ("poml", "<p>{{ x }}</p>", "<p>{{ x }} {{ x.constructor }}</p>"),
        ("poml", "<p>{{ x }}</p>", '<p>{{ x }}</p><document src="/etc/passwd" />'),
        ("poml", "<p>{{ x }}</p>", '<p if="process.exit()">{{ x }}</p>'),
    ],
)
def test_a_rewritten_prompt_uses_what_the_seed_uses_and_nothing_more(engine, seed, edit) -> None:
    templates = pytest.importorskip("agl_apo.templates")
    given = agl.PromptTemplate(template=seed, engine=engine)
    templates.check_edit(given, f"Think first. {seed} And check.")
    refused = r"which the seed does not|is not a plain name"
    with pytest.raises(templates.BrokenTemplateError, match=refused):
        templates.check_edit(given, edit)
