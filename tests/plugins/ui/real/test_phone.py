"""Long names do not make a page wider than a phone."""

import pytest

from ..stores import begin  # noqa: TID252

WIDTH = 360
APART = ".scroll, .tabs, pre, .words"
"""What is scrolled by itself."""
WIDER = f"""() => [...document.querySelectorAll("body *")]
  .filter((one) => one.getBoundingClientRect().right > innerWidth + 1 && !one.closest("{APART}"))
  .map((one) => one.tagName + "." + one.className + " " + one.textContent.trim().slice(0, 40))"""


@pytest.fixture
def narrow(page):
    page.set_viewport_size({"width": WIDTH, "height": 800})
    return page


def assert_fits(page):
    wider = page.evaluate(WIDER)[:5]
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTH, (page.url, wider)


def test_long_ids_of_runs(narrow, serve, tmp_path):
    path, ids = tmp_path / "store.db", ["r" * 100, "s" * 100]
    begin(path, *ids)
    address = serve(path)
    base = f"/s/{tmp_path.name}"
    chosen = "&".join(f"run={tmp_path.name}/{one}" for one in ids)
    for page in (f"{base}/", f"{base}/settings", "/", f"/compare?{chosen}", f"{base}/runners"):
        narrow.goto(address + page)
        assert_fits(narrow)


@pytest.mark.parametrize("tab", ["", "rollouts", "resources", "runners", "settings", "prompts"])
def test_hostile_names_of_a_tab(narrow, serve, hostile, tab):
    narrow.goto(f"{serve(hostile)}/s/hostile/{tab}")
    assert_fits(narrow)
    cut = "(all) => all.filter((one) => one.scrollWidth > one.clientWidth + 1).length"
    assert narrow.locator(".scroll:has(.cards)").evaluate_all(cut) == 0


def test_hostile_names_of_a_rollout(narrow, serve, hostile):
    address = f"{serve(hostile)}/s/hostile/rollouts"
    narrow.goto(address)
    for link in narrow.locator("#table a.id").evaluate_all("(all) => all.map((one) => one.href)"):
        narrow.goto(link)
        assert_fits(narrow)


def test_the_whole_curve_and_its_legend_are_seen(narrow, serve, trained):
    narrow.goto(f"{serve(trained / 'store.db')}/s/run/")
    drawn = narrow.locator("#curve svg:visible")
    assert drawn.count() == 1
    for one in (drawn, *narrow.locator("#curve .key").all()):
        box = one.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= WIDTH
    shown = drawn.locator(".tick").first.evaluate(
        "(one) => one.getBoundingClientRect().height / one.getBBox().height"
    )
    assert shown > 0.85  # of 11 px
    narrow.set_viewport_size({"width": 1280, "height": 800})
    assert drawn.count() == 1
    assert drawn.bounding_box()["width"] > 1000
