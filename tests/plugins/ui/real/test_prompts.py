"""Candidates of prompt runs that were really made, and why one was accepted."""

import urllib.error
import urllib.request

import pytest

import agl

from ..stores import apart  # noqa: TID252


def test_the_tree_says_what_became_of_each_candidate_and_why(page, serve, prompted):
    name = prompted.name
    page.goto(f"{serve(prompted / 'store.db')}/s/{name}/")
    page.get_by_role("link", name="Prompts").click()
    decision = page.locator("#decision")
    assert decision.locator(".badge").inner_text() == "accepted"
    assert "because the lower bound of the gain is above zero" in decision.inner_text()
    picture = decision.locator("svg").get_attribute("aria-label")
    assert picture.startswith("gain 0.")
    tree = page.locator("#tree tbody tr")
    assert tree.first.locator("a").inner_text() == "seed"
    assert tree.count() >= 5
    best = page.locator("#tree tr", has_text="best").locator("a").inner_text()
    assert page.locator("#candidate h2").inner_text().startswith(best)
    assert decision.locator("p a.id").inner_text() == best


def test_two_candidates_are_compared_in_words_and_by_task(page, serve, prompted):
    page.goto(f"{serve(prompted / 'store.db')}/s/{prompted.name}/prompts")
    best = page.locator("#tree tr", has_text="best").locator("a").inner_text()
    page.locator("#decision p a.id").click()
    assert "against=seed" in page.url
    assert page.locator("#candidate ins").count() >= 1
    assert page.locator("#candidate h2").inner_text() == f"{best} against seed"
    rows = page.locator("#scores tbody tr")
    assert rows.count() >= 20  # held-out tasks
    tasks, mine, theirs, gains = zip(
        *(row.locator("td").all_inner_texts()[:4] for row in rows.all()), strict=True
    )
    assert len(tasks) == rows.count()
    differences = [float(gain.replace("−", "-")) for gain in gains]
    given = [float(a) - float(b) for a, b in zip(mine, theirs, strict=True)]
    assert differences == pytest.approx(given)
    page.get_by_label("Against").select_option(best)
    page.get_by_role("button", name="Compare").click()
    assert page.locator("#candidate ins, #candidate del").count() == 0
    page.go_back()
    assert page.locator("#candidate h2").inner_text() == f"{best} against seed"
    page.locator("#scores tbody a").first.click()
    assert page.locator("h1").inner_text().startswith("Rollout ro-")


def test_a_store_without_a_prompt_run_says_what_makes_one(page, serve, trained):
    page.goto(f"{serve(trained / 'store.db')}/s/run/prompts")
    assert "No prompt run is recorded here." in page.locator("main").inner_text()


def test_a_candidate_that_is_none_is_refused(serve, prompted):
    address = f"{serve(prompted / 'store.db')}/s/{prompted.name}/prompts"
    for query in ("candidate=none", "against=none", "run=none", "split=none"):
        with pytest.raises(urllib.error.HTTPError) as told:
            urllib.request.urlopen(f"{address}?{query}")
        assert told.value.code == 400
        told.value.close()


def test_candidates_come_as_they_are_made(page, serve, tmp_path):
    file = tmp_path / "store.db"
    store = agl.SqliteLightningStore(file, durability="process")

    async def note(kind, name, answer):
        of = {"run": "r", "algorithm": "apo", "kind": kind, "name": name, "answer": answer}
        await store.put_documents([agl.Document(kind="prompts", key=f"{kind}/{name}", body=of)])

    async def begin():
        await store.add_resources({"p": agl.PromptTemplate(template="Hi {x}")})
        await note("start", "options", {"seed prompts": {"p": "Hi {x}"}})

    apart(begin())
    page.goto(f"{serve(file)}/s/{tmp_path.name}/prompts")
    assert "The search is not at its end" in page.locator("#decision").inner_text()
    assert page.locator("#tree tbody tr").count() == 1
    made = {"parent": "seed", "edits": {"p": "Hello {x}"}, "dropped": None, "copies": [3]}
    apart(note("candidate", "r1.1.1", made))
    page.locator("#tree", has_text="r1.1.1").wait_for()
    assert "copies from 1 train tasks" in page.locator("#tree").inner_text()
    apart(store.close())
