"""Candidates of prompt runs that were really made, and why one was accepted."""

import pytest

from ..stores import read  # noqa: TID252


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


def test_a_candidate_that_is_none_is_refused(serve, prompted):
    address = f"{serve(prompted / 'store.db')}/s/{prompted.name}/prompts"
    for query in ("candidate=none", "against=none", "run=none", "split=none"):
        assert read(f"{address}?{query}")[0] == 400
