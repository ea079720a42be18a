import pytest

import agl
from agl_apo.copying import copied_tasks
from agl_apo.models import bare
from agl_apo.templates import BrokenTemplateError, check_edit, placeholders, render


@pytest.mark.parametrize(
    ("engine", "text"),
    [
        ("f-string", "Find {room!r} for {people:>3} and {{not this}}."),
        ("jinja", "Find {{ room }}{% for p in people %}{{ p }}{% endfor %}."),
        ("poml", "<poml><p>Find {{ room }} for {{people}}</p></poml>"),
    ],
)
def test_placeholders_are_read_in_every_engine(engine, text) -> None:
    assert placeholders(agl.PromptTemplate(template=text, engine=engine)) == {"room", "people"}


@pytest.mark.parametrize(
    ("engine", "seed", "edit", "why"),
    [
        ("f-string", "Do {a}.", "Do it.", "lost the placeholder 'a'"),
        ("f-string", "Do {a}.", "Do {a} and {b}.", "asks for 'b', .* it gives 'a'"),
        ("f-string", "Do {a}.", 'Do {a}: {"room": 1}', "a literal brace is written twice"),
        ("f-string", "Do {a}.", "Do {a", "a literal brace is written twice"),
        ("f-string", "Do {a}.", " \n", "returned nothing"),
        ("jinja", "Do {{ a }}.", "Do {{ a }} {% if %}", "line 1"),
        ("poml", "<p>{{ a }}</p>", "<p>{{ a </p>", "do not pair"),
    ],
)
def test_edit_that_breaks_the_template_is_refused_with_the_reason(engine, seed, edit, why) -> None:
    with pytest.raises(BrokenTemplateError, match=why):
        check_edit(agl.PromptTemplate(template=seed, engine=engine), edit)


def test_edit_that_keeps_the_placeholders_is_taken() -> None:
    check_edit(agl.PromptTemplate(template="Do {a}."), "First think. Then do {a}, and {{mind}} it.")


def test_templates_render_in_every_engine() -> None:
    assert render(agl.PromptTemplate(template="Hi {a}"), a=1) == "Hi 1"
    assert render(agl.PromptTemplate(template="Hi {{ a }}", engine="jinja"), a=1) == "Hi 1"


def test_poml_template_is_rendered_by_poml() -> None:
    pytest.importorskip("poml")
    template = agl.PromptTemplate(template="<poml><p>Hi {{ a }}!</p></poml>", engine="poml")
    assert render(template, a="Ada").strip() == "Hi Ada!"
    with pytest.raises(agl.AglError, match=r"agl_apo\.render"):
        template.format(a="Ada")


@pytest.mark.parametrize(
    "answer",
    ["New {a}", "```\nNew {a}\n```", "```text\nNew {a}```", "<prompt>\nNew {a}\n</prompt>"],
)
def test_what_models_put_around_a_prompt_is_taken_off(answer) -> None:
    assert bare(answer) == "New {a}"


FIRST = {"date": "2025-10-13", "time": "16:30", "needs": ["projector"], "choice": "Nova"}
SECOND = {"date": "2025-10-14", "time": "09:00", "needs": ["phone"], "choice": "Orion"}
TASKS = [{**task, "kind": "room"} for task in (FIRST, SECOND)]


@pytest.mark.parametrize(
    ("text", "copied"),
    [
        ("Prefer the smallest room that fits.", []),
        ("On 2025-10-13 rooms are scarce.", []),
        ("Example: 2025-10-13 at 16:30 -> Nova.", [0]),
        ("2025-10-14, 09:00: Orion\nPhone calls need a room.", [1]),
    ],
)
def test_prompt_that_states_a_training_item_is_flagged(text, copied) -> None:
    assert copied_tasks(text, "Find a room.", TASKS) == copied


def test_prompt_that_quotes_a_training_text_is_flagged_unless_the_seed_did() -> None:
    tasks = ["Why does the moon not fall down on us?", "Name three rivers."]
    text = "Questions such as 'why does the moon not fall down' need physics."
    assert copied_tasks(text, "Answer.", tasks) == [0]
    assert copied_tasks(text, text, tasks) == []
